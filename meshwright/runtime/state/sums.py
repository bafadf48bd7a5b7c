"""Checksums of what a checkpoint's files hold: a byte that changed after it was saved is noticed before it is read.

A rank that has written a file leaves another by it, `__1_0.distcp.sums`, with one sum for each tensor in it. A rank
that loads checks the parts it is about to read and no others; where any finds one damaged, all raise the same and
nothing has been changed.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from io import BufferedReader
from pathlib import Path
from typing import Any, TypeVar

from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import LoadPlan, SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future
from torch.serialization import get_crc32_options, set_crc32_options

from meshwright.errors import MeshwrightError, RunError

SUFFIX = ".sums"
_BLOCK = 1 << 18
T = TypeVar("T")
Part = tuple[int, int]
"""Where a tensor begins in its file, and how many bytes it takes there."""


class DamagedError(RunError):
    """A checkpoint's files are not what was saved."""


class SummedWriter(FileSystemWriter):
    """DCP's writer; a file that it has written gets its sums next to it, made while the disk takes it."""

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        theirs = get_crc32_options()
        try:
            self.sync_files = False
            set_crc32_options(False)  # of the same bytes, and looked at by nobody
            written = super().write_data(plan, planner)
        finally:
            self.sync_files = True
            set_crc32_options(theirs)
        files: dict[str, list[Part]] = {}
        for result in written.value():
            place = result.storage_data
            files.setdefault(place.relative_path, []).append((place.offset, place.length))
        paths = {Path(self.path) / name: parts for name, parts in files.items()}
        with ThreadPoolExecutor(1) as disk:
            synced = disk.map(_sync, paths)
            for path, parts in paths.items():
                _write_sums(path, parts)
            list(synced)
        return written


class SummedReader(FileSystemReader):
    """DCP's reader; refuses, before anything is read, parts that are not as they were written. metadata: what is known
    of the checkpoint, which is then not read from DCP's pickle. summed: whether its files must have sums."""

    def __init__(self, path: Path, metadata: Metadata, summed: bool) -> None:
        super().__init__(path)
        self._known, self._summed = metadata, summed

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        if self._known.storage_meta is not None:
            self._known.storage_meta.load_id = self.load_id
        return self._known

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        files: dict[str, dict[Part, str]] = {}
        for item in plan.items:
            place = self.storage_data[item.storage_index]
            files.setdefault(place.relative_path, {})[place.offset, place.length] = item.storage_index.fqn
        for name, parts in files.items():
            _check_file(Path(self.path) / name, parts, self._summed)
        return super().prepare_local_plan(plan)


def agreed(action: Callable[[], T], expected: str) -> T:
    """What DCP does together: one rank's refusal is every rank's, and any other fault has one line."""
    try:
        return action()
    except CheckpointException as error:
        rank, (fault, _) = min(
            error.failures.items(), key=lambda found: (not isinstance(found[1][0], MeshwrightError), found[0])
        )
        if isinstance(fault, MeshwrightError):
            raise fault from None
        raise RunError(f"rank {rank} could not: {type(fault).__name__}: {fault}", expected) from fault


def file_sum(path: Path) -> int:
    with open(path, "rb") as file:
        return _sum(file, 0, os.fstat(file.fileno()).st_size)


def text_sum(summary: dict[str, Any]) -> int:
    """Of what a summary says when it is read back, whatever the order and spacing."""
    return zlib.crc32(json.dumps(json.loads(json.dumps(summary)), sort_keys=True).encode())


def _sync(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def _write_sums(path: Path, parts: Iterable[Part]) -> None:
    with open(path, "rb") as file:
        sums = [[offset, length, _sum(file, offset, length)] for offset, length in sorted(parts)]
    with open(path.with_name(path.name + SUFFIX), "w", encoding="utf-8") as file_of_sums:
        json.dump(sums, file_of_sums)
        file_of_sums.flush()
        os.fsync(file_of_sums.fileno())


def _check_file(path: Path, parts: dict[Part, str], summed: bool) -> None:
    sums = _read_sums(path.with_name(path.name + SUFFIX))
    if not sums and not summed:
        return  # it was saved before there were sums
    with open(path, "rb") as file:
        for (offset, length), name in sorted(parts.items()):
            if sums.get((offset, length)) != _sum(file, offset, length):
                what = name.partition("/")[2]
                raise DamagedError(
                    f"{path} is damaged: bytes {offset:,} to {offset + length:,}, {what}, have changed",
                    "what was saved",
                    "use another checkpoint",
                )


def _read_sums(path: Path) -> dict[Part, int]:
    if not path.exists():
        return {}
    try:
        return {(int(offset), int(length)): int(total) for offset, length, total in json.loads(path.read_bytes())}
    except (OSError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise DamagedError(f"{path} is damaged: {error}", "what was saved", "use another checkpoint") from error


def _sum(file: BufferedReader, offset: int, length: int) -> int:
    total, block = 0, memoryview(bytearray(min(_BLOCK, length)))
    file.seek(offset)
    while length > 0 and (count := file.readinto(block[:length])):
        total, length = zlib.crc32(block[:count], total), length - count
    return total
