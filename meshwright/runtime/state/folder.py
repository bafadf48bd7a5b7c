"""A folder of checkpoints: which are there and complete, what each says of itself, how one is completed.

There is one per saved step, `step-000050`. It is written under a hidden name and renamed when every rank's part is
there, so what carries its name is complete, and a save that is killed costs nothing that was.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch.distributed as dist
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata

from meshwright.errors import MeshwrightError, RunError
from meshwright.runtime.state.sums import DamagedError, file_sum, text_sum

FORMAT = 1
SUMMARY, METADATA = "meshwright.json", ".metadata"
_STEP = re.compile(r"step-(\d+)|\.old-step-(\d+)")
Folder = str | os.PathLike[str]
T = TypeVar("T")


def complete_ones(folder: Folder) -> list[Path]:
    """The complete checkpoints in a folder, newest first, or the folder itself where it is one; at least one."""
    root = Path(folder)
    if (root / SUMMARY).exists():
        return [root]
    found = [entry for entry in _checkpoints(root) if (entry / SUMMARY).exists()]
    if not found:
        raise _nothing_in(root)
    return sorted(found, key=_step_of, reverse=True)


def latest(folder: Folder) -> Path | None:
    """The newest complete checkpoint in a folder; None if there is none."""
    try:
        return complete_ones(folder)[0]
    except RunError:
        return None


def summary_of(folder: Folder) -> dict[str, Any]:
    """What the newest complete checkpoint, of those that can be read, says of itself."""
    every = complete_ones(folder)
    for number, path in enumerate(every):
        try:
            return read_summary(path)
        except DamagedError:
            if number == len(every) - 1:
                raise
    raise AssertionError("complete_ones gives at least one")


def read_summary(path: Path) -> dict[str, Any]:
    """What a checkpoint says of itself; DamagedError where its files are not of the sizes that it names."""
    try:
        found: dict[str, Any] = json.loads((path / SUMMARY).read_text(encoding="utf-8"))
        total = found.pop("sum", None)
    except (OSError, ValueError, AttributeError) as error:
        raise DamagedError(f"{path / SUMMARY} cannot be read: {error}", "a checkpoint", "use another one") from error
    if total is not None and total != text_sum(found):
        raise DamagedError(f"{path / SUMMARY} is damaged", "what was saved", "use another checkpoint")
    if found.get("format") != FORMAT:
        raise RunError(f"{path} has format {found.get('format')}", f"format {FORMAT}", "use the version that wrote it")
    for name, size in found["files"].items():
        file = path / name
        if not file.exists() or file.stat().st_size != size:
            there = f"{file.stat().st_size:,} bytes" if file.exists() else "not there"
            raise DamagedError(f"{file} is {there}", f"{size:,} bytes, as when it was saved", "use another checkpoint")
    return found


def read_metadata(path: Path, summary: dict[str, Any]) -> Metadata:
    """What DCP says of a checkpoint's tensors; `summary` has its sum, unless it was saved before there were sums."""
    file = path / METADATA
    if "metadata_sum" in summary and file_sum(file) != summary["metadata_sum"]:
        raise DamagedError(f"{file} is damaged", "what was saved", "use another checkpoint")
    try:
        return FileSystemReader(path).read_metadata()
    except Exception as error:  # it is unpickled, and damaged bytes may raise anything
        raise DamagedError(f"{file} cannot be read: {error}", "a checkpoint", "use another one") from error


def begin(root: Path, scratch: Path) -> None:
    """Make room for a checkpoint; what unfinished saves left goes."""
    root.mkdir(parents=True, exist_ok=True)
    for stale in (*root.glob(".saving-*"), scratch):
        if stale.exists():
            shutil.rmtree(stale)
    scratch.mkdir()


def complete(scratch: Path, target: Path, summary: dict[str, Any], keep: int | None) -> None:
    """Give a checkpoint whose files are written its summary and its name; of those up to it, keep the newest."""
    files = {str(p.relative_to(scratch)): p.stat().st_size for p in scratch.rglob("*") if p.is_file()}
    told = summary | {"format": FORMAT, "files": files, "metadata_sum": file_sum(scratch / METADATA)}
    with open(scratch / SUMMARY, "w", encoding="utf-8") as file:
        json.dump(told | {"sum": text_sum(told)}, file)
        file.flush()
        os.fsync(file.fileno())
    old = target.with_name(f".old-{target.name}")
    if target.exists():
        shutil.rmtree(old, ignore_errors=True)
        target.rename(old)
    scratch.rename(target)
    _sync_folder(target.parent)
    shutil.rmtree(old, ignore_errors=True)
    # Later ones are of a run that was gone back behind, or damaged: they are not why this one should go.
    up_to = [entry for entry in _checkpoints(target.parent) if _step_of(entry) <= _step_of(target)]
    for previous in sorted(up_to, key=_step_of)[: -keep if keep else 0]:
        shutil.rmtree(previous)


def together(action: Callable[[], T]) -> T:
    """Run on every rank; where it is refused on any, all raise what the first of them did."""
    found: T | None = None
    fault: MeshwrightError | None = None
    try:
        found = action()
    except MeshwrightError as error:
        fault = error
    faults: list[MeshwrightError | None] = [None] * dist.get_world_size()
    dist.all_gather_object(faults, fault)
    for one in faults:
        if one is not None:
            raise one
    assert found is not None
    return found


def on_first(action: Callable[[], None], what: str) -> None:
    """Run on rank 0 while the others wait; where it fails, every rank raises the same."""
    fault: list[str | None] = [None]
    if dist.get_rank() == 0:
        try:
            action()
        except OSError as error:
            fault = [str(error)]
    dist.broadcast_object_list(fault, src=0)
    if fault[0] is not None:
        raise RunError(f"{what}: {fault[0]}", "a folder with room that can be written", "free some, or name another")


def _checkpoints(root: Path) -> list[Path]:
    return [entry for entry in root.iterdir() if _STEP.fullmatch(entry.name)] if root.is_dir() else []


def _step_of(path: Path) -> tuple[int, bool]:
    """By step; of two with the same, the one that has not been replaced."""
    match = _STEP.fullmatch(path.name)
    assert match is not None
    return int(match[1] or match[2]), match[1] is not None


def _nothing_in(root: Path) -> RunError:
    half = sorted(entry.name for entry in root.glob(".saving-*")) if root.is_dir() else []
    if half:
        return RunError(
            f"{root} has only a half-written checkpoint, {half[0]}", "a complete one", "start anew, or name another"
        )
    what = "has no checkpoint" if root.is_dir() else "is not there"
    return RunError(f"{root} {what}", "a folder that `save` wrote to", "check the path")


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
