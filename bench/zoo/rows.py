"""Rows of the zoo as JSON: by name, with the versions of the packages."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

Row = dict[str, Any]
PACKAGES = (
    "torch", "transformers", "timm", "diffusers", "torchvision", "x-transformers", "peft", "open_clip_torch",
    "torch-geometric",
)  # fmt: skip


def read(path: Path) -> dict[str, Row]:
    if not path.exists():
        return {}
    return {row["name"]: row for row in json.loads(path.read_text(encoding="utf-8"))["rows"]}


def write(path: Path, rows: dict[str, Row]) -> None:
    found = {"versions": versions(), "rows": list(rows.values())}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found
