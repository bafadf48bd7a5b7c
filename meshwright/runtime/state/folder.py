"""A folder of checkpoints: which are there and complete, what each says of itself, how one is completed.

There is one per saved step, `step-000050`. It is written under a hidden name and renamed when every rank's part is
there, so what carries its name is complete, and a save that is killed costs nothing that was.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import torch.distributed as dist
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata

from meshwright.errors import MeshwrightError, RunError
from meshwright.runtime.state.index import INDEX, check_inside, read_index
from meshwright.runtime.state.lock import take
from meshwright.runtime.state.sums import SUFFIX, DamagedError, file_sum, text_sum

FORMAT, OLD = 2, 1
"""OLD: had no index but DCP's."""
DAMAGED = ".damaged"
"""A file in checkpoints that were found to be."""
SUMMARY, METADATA, DATA = "meshwright.json", ".metadata", ".distcp"
_STEP = re.compile(r"step-([0-9]{1,18})|\.old-step-([0-9]{1,18})")
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


def summary_of(folder: Folder, trust: bool = False) -> dict[str, Any]:
    """What the newest complete checkpoint, of those that can be read, says of itself."""
    every = complete_ones(folder)
    for number, path in enumerate(every):
        try:
            return read_summary(path, trust)
        except DamagedError:
            if number == len(every) - 1:
                raise
    raise AssertionError("complete_ones gives at least one")


class _Group(msgspec.Struct):
    params: tuple[str, ...]


class _Summary(msgspec.Struct):
    """Of what kind the fields are that a run goes on with; others may be there too."""

    step: int
    seed: int
    batch: int
    world_size: int
    model: str
    optimizer: str
    random: str
    parameters: dict[str, tuple[int, ...]]
    groups: tuple[_Group, ...]
    numbers: tuple[tuple[str, str, Any], ...]
    extra: dict[str, Any]
    files: dict[str, int]
    loader: Any = None


class _Sums(msgspec.Struct):
    index_sum: int
    sums: dict[str, int]


def read_summary(path: Path, trust: bool = False) -> dict[str, Any]:
    """What a checkpoint says of itself; DamagedError where its files are not of the sizes that it names.

    trust: whether one without an index of ours may be used, whose pickle is then read.
    """
    file = path / SUMMARY
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise DamagedError(f"{file} cannot be read: {error}", "a checkpoint", "use another one") from error
    if not isinstance(found, dict):
        raise DamagedError(f"{file} cannot be read: it is no table", "a checkpoint", "use another one")
    total = found.pop("sum", None)
    if total is None and found.get("format") != OLD:
        raise DamagedError(f"{file} has no checksum", "what was saved", "use another checkpoint")
    if total is not None and total != text_sum(found):
        raise DamagedError(f"{file} is damaged", "what was saved", "use another checkpoint")
    if found.get("format") == OLD and not trust:
        raise RunError(
            f"{path} has no index but a pickle, which runs what it says when it is read",
            "a checkpoint with an index, as this version writes",
            "pass --trust (trust=True) if you know who wrote it",
        )
    if found.get("format") not in (OLD, FORMAT):
        raise RunError(
            f"{path} has format {found.get('format')!r}", f"format {FORMAT}", "use the version that wrote it"
        )
    _check_fields(file, found)
    for name, size in found["files"].items():
        check_inside(path, name)
        there = _size(path / name)
        if there != size:
            said = "not there" if there is None else f"{there:,} bytes"
            raise DamagedError(f"{path / name} is {said}", f"{size:,} bytes, as when it was saved", "use another one")
    if found["format"] == FORMAT:
        _check_sums(path, found)
    return found


def _check_fields(file: Path, found: dict[str, Any]) -> None:
    try:
        msgspec.convert(found, _Summary)
        if found["format"] == FORMAT:
            msgspec.convert(found, _Sums)
        base64.b64decode(found["random"], validate=True)
    except (msgspec.ValidationError, ValueError) as error:
        raise DamagedError(f"{file} is damaged: {error}", "what was saved", "use another checkpoint") from error


def _check_sums(path: Path, found: dict[str, Any]) -> None:
    """Every file that a tensor may lie in has sums, and these are what was saved."""
    wanted = {f"{name}{SUFFIX}" for name in found["files"] if name.endswith(DATA)}
    if absent := sorted(wanted - (found["sums"].keys() & found["files"].keys())):
        raise DamagedError(f"{path / absent[0].removesuffix(SUFFIX)} has no checksums", "what was saved", "use another")
    for name in sorted(wanted):
        if file_sum(path / name) != found["sums"][name]:
            raise DamagedError(f"{path / name} is damaged", "what was saved", "use another checkpoint")


def _size(file: Path) -> int | None:
    try:
        return file.stat().st_size if file.is_file() else None
    except OSError:
        return None


def read_metadata(path: Path, summary: dict[str, Any]) -> Metadata:
    """What there is to know of a checkpoint's tensors; `summary` has the sum of the index."""
    if summary["format"] == FORMAT:
        if INDEX not in summary["files"] or file_sum(path / INDEX) != summary["index_sum"]:
            raise DamagedError(f"{path / INDEX} is damaged", "what was saved", "use another checkpoint")
        return read_index(path, summary["files"])
    file = path / METADATA
    if "metadata_sum" in summary and file_sum(file) != summary["metadata_sum"]:
        raise DamagedError(f"{file} is damaged", "what was saved", "use another checkpoint")
    try:
        return FileSystemReader(path).read_metadata()
    except Exception as error:  # it is unpickled, and damaged bytes may raise anything
        raise DamagedError(f"{file} cannot be read: {error}", "a checkpoint", "use another one") from error


def begin(root: Path, scratch: Path) -> None:
    """Make room for a checkpoint; what unfinished saves left goes. The folder is locked from then on."""
    take(root)
    for stale in (*root.glob(".saving-*"), scratch):
        if stale.exists():
            shutil.rmtree(stale)
    scratch.mkdir()


def complete(scratch: Path, target: Path, summary: dict[str, Any], keep: int | None) -> None:
    """Give a checkpoint whose files are written its summary and its name; of those up to it, keep the newest."""
    files = {str(p.relative_to(scratch)): p.stat().st_size for p in scratch.rglob("*") if p.is_file()}
    sums = {name: file_sum(scratch / name) for name in files if name.endswith(SUFFIX)}
    told = summary | {"format": FORMAT, "files": files, "index_sum": file_sum(scratch / INDEX), "sums": sums}
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
    # Later ones are of a run that was gone back behind; those found damaged are no use: neither is why one should go.
    up_to = [entry for entry in _checkpoints(target.parent) if _step_of(entry) <= _step_of(target)]
    up_to = [entry for entry in up_to if not (entry / DAMAGED).exists()]
    for previous in sorted(up_to, key=_step_of)[: -keep if keep else 0]:
        shutil.rmtree(previous)


def mark_damaged(path: Path) -> None:
    """So that it does not count among those that are kept; by rank 0, where the folder can be written."""
    if dist.get_rank() == 0:
        with suppress(OSError):
            (path / DAMAGED).touch()


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
    fault: list[MeshwrightError | None] = [None]
    if dist.get_rank() == 0:
        try:
            action()
        except MeshwrightError as error:
            fault = [error]
        except OSError as error:
            expected = "a folder with room that can be written"
            fault = [RunError(f"{what}: {error}", expected, "free some, or name another")]
    dist.broadcast_object_list(fault, src=0)
    if fault[0] is not None:
        raise fault[0]


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
