"""Rows of the zoo as JSON: by name, with the versions of the packages."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

Row = dict[str, Any]
EIGHT = "plan of 8"
"""The phase that plans for 8 H100."""
PACKAGES = (
    "torch", "transformers", "timm", "diffusers", "torchvision", "x-transformers", "peft", "open_clip_torch",
    "torch-geometric",
)  # fmt: skip


def read(path: Path) -> dict[str, Row]:
    if not path.exists():
        return {}
    return {row["name"]: row for row in json.loads(path.read_text(encoding="utf-8"))["rows"]}


def joined(before: Row | None, now: Row, parts: Sequence[str]) -> Row:
    """The row of a trial, with the parts that it left out as an earlier trial had them; the worst is the outcome. What
    was run and equal stays so where only planning for 8 H100 took too long: the page says that in its own column."""
    told = {key: now.get(key, "") for key in ("outcome", "phase", "text")}
    every = {**(before or {}).get("parts", {}), **dict.fromkeys(parts, told)}
    kept = {key: value for key, value in (before or now)["cpu_s"].items() if (key == EIGHT) != ("plan" in parts)}
    judged = {key: part for key, part in every.items() if key != "plan" or part["outcome"] != "timeout"} or every
    worst = min(judged.values(), key=lambda part: part["outcome"] == "equal")
    return {**(before or {}), **now, **worst, "parts": every, "cpu_s": kept | now["cpu_s"]}


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
