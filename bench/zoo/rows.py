"""Rows of the zoo as JSON: by name, each with the versions of the packages and the source of meshwright it ran with."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import meshwright

Row = dict[str, Any]
EIGHT = "plan of 8"
"""The phase that plans for 8 H100."""
PACKAGES = (
    "torch", "transformers", "timm", "diffusers", "torchvision", "x-transformers", "peft", "open_clip_torch",
    "torch-geometric",
)  # fmt: skip
DISTRIBUTIONS = {"open_clip": "open_clip_torch", "torch_geometric": "torch-geometric"}
"""What a source's package is called where it is not called as the source is."""


def read(path: Path) -> dict[str, Row]:
    if not path.exists():
        return {}
    return {row["name"]: row for row in json.loads(path.read_text(encoding="utf-8"))["rows"]}


def joined(before: Row | None, now: Row, parts: Sequence[str]) -> Row:
    """The row of a trial, with the parts that it left out as an earlier trial had them; the worst is the outcome. What
    was run and equal stays so where only planning for 8 H100 took too long: the page says that in its own column."""
    told = {key: now.get(key, "") for key in ("outcome", "phase", "text")}
    every = {**(before or {}).get("parts", {}), **dict.fromkeys(parts, told), **now.get("parts", {})}
    kept = {key: value for key, value in (before or now)["cpu_s"].items() if (key == EIGHT) != ("plan" in parts)}
    judged = {key: part for key, part in every.items() if key != "plan" or part["outcome"] != "timeout"} or every
    worst = min(judged.values(), key=lambda part: part["outcome"] == "equal")
    return {**(before or {}), **now, **worst, "parts": every, "cpu_s": kept | now["cpu_s"]}


def started(name: str) -> Row:
    """The row of a model that is about to be tried: what it is tried with, and that nothing has come of it yet."""
    source = name.partition(":")[0]
    tried = {key: text for key, text in versions().items() if key in ("torch", DISTRIBUTIONS.get(source, source))}
    row: Row = {"name": name, "source": source, "outcome": "abort", "phase": "start", "cpu_s": {}}
    return row | {"code": digest(), "ran_with": tried}


@cache
def digest() -> str:
    """Of the source of meshwright: the same for rows that the same code was tried in."""
    found = sha256()
    for file in sorted(Path(meshwright.__file__).parent.rglob("*.py")):
        found.update(file.read_bytes())
    return found.hexdigest()[:10]


def write(path: Path, rows: dict[str, Row]) -> None:
    found = {"rows": list(rows.values())}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


@cache
def versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found
