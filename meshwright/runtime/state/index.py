"""The index of a checkpoint: which tensors it holds, of what sizes, and where their pieces lie; as JSON.

DCP's own, `.metadata`, is a pickle: who reads it runs what it says. It is written for DCP's sake and not read here.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from math import prod
from pathlib import Path

import msgspec
import torch
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.storage import WriteResult

from meshwright.errors import RunError
from meshwright.runtime.state.sums import DamagedError
from meshwright.torch_compat import storage_place

INDEX = "index.json"


class _Tensor(msgspec.Struct, forbid_unknown_fields=True):
    """chunks: the offsets and the sizes of each piece."""

    dtype: str
    size: tuple[int, ...]
    chunks: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]


class _Place(msgspec.Struct, forbid_unknown_fields=True):
    """A piece of a tensor: its offset in it (None: it is whole), and where its bytes lie."""

    name: str
    offset: tuple[int, ...] | None
    number: int | None
    file: str
    at: int
    length: int


class _Index(msgspec.Struct, forbid_unknown_fields=True):
    tensors: dict[str, _Tensor]
    places: tuple[_Place, ...]


def write_index(folder: Path, metadata: Metadata, results: Iterable[Iterable[WriteResult]]) -> None:
    """Of tensors that DCP has written."""
    tensors = {name: _tensor(name, entry) for name, entry in metadata.state_dict_metadata.items()}
    places = [_place(result) for part in results for result in part]
    with open(folder / INDEX, "wb") as file:
        file.write(msgspec.json.encode(_Index(tensors, tuple(places))))
        file.flush()
        os.fsync(file.fileno())


def _tensor(name: str, entry: object) -> _Tensor:
    assert isinstance(entry, TensorStorageMetadata), f"{name} is no tensor"
    chunks = tuple((tuple(chunk.offsets), tuple(chunk.sizes)) for chunk in entry.chunks)
    return _Tensor(str(entry.properties.dtype).removeprefix("torch."), tuple(entry.size), chunks)


def _place(result: WriteResult) -> _Place:
    where, index = result.storage_data, result.index
    offset = None if index.offset is None else tuple(index.offset)
    return _Place(index.fqn, offset, index.index, where.relative_path, where.offset, where.length)


def read_index(folder: Path, files: Mapping[str, int]) -> Metadata:
    """What DCP is to know of a checkpoint. files: the sizes of those that its summary names."""
    path = folder / INDEX
    try:
        found = msgspec.json.decode(path.read_bytes(), type=_Index)
    except (OSError, msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise DamagedError(f"{path} cannot be read: {error}", "the index that was saved", "use another one") from error
    held: dict[str, int] = {}
    for place in found.places:
        check_inside(folder, place.file)
        if place.at < 0 or place.length < 0 or place.at + place.length > files.get(place.file, 0):
            raise _wrong(path, f"{place.name} at bytes {place.at:,} to {place.at + place.length:,} of {place.file}")
        held[place.name] = held.get(place.name, 0) + place.length
    metadata = Metadata({name: _entry(path, name, one, held.get(name, 0)) for name, one in found.tensors.items()})
    metadata.storage_data = {
        MetadataIndex(one.name, one.offset, one.number): storage_place(one.file, one.at, one.length)
        for one in found.places
    }
    metadata.storage_meta = StorageMeta()
    return metadata


def _entry(path: Path, name: str, tensor: _Tensor, held_bytes: int) -> TensorStorageMetadata:
    dtype = getattr(torch, tensor.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise _wrong(path, f"{name} has dtype {tensor.dtype[:60]!r}")
    sizes = [tensor.size, *(numbers for chunk in tensor.chunks for numbers in chunk)]
    if any(len(one) != len(tensor.size) or min(one, default=0) < 0 for one in sizes):
        raise _wrong(path, f"{name} of size {list(tensor.size)[:8]} has pieces of other dims")
    if max(tensor.size, default=0) > _MOST or prod(tensor.size) * dtype.itemsize > held_bytes:
        raise _wrong(path, f"{name} has size {list(tensor.size)[:8]} and {held_bytes:,} bytes")
    for offsets, lengths in tensor.chunks:
        if any(at + length > size for at, length, size in zip(offsets, lengths, tensor.size, strict=True)):
            raise _wrong(path, f"{name} of size {list(tensor.size)[:8]} has a piece at {list(offsets)[:8]}")
    chunks = [ChunkStorageMetadata(torch.Size(offsets), torch.Size(lengths)) for offsets, lengths in tensor.chunks]
    return TensorStorageMetadata(TensorProperties(dtype=dtype), torch.Size(tensor.size), chunks)


_MOST = 1 << 48


def _wrong(path: Path, what: str) -> DamagedError:
    return DamagedError(f"{path}: {what}", "what was saved", "use another checkpoint")


def check_inside(folder: Path, name: str) -> None:
    """Refuses a file's name that leads out of its folder."""
    if not name or Path(name).name != name or name in (".", "..") or "\0" in name:
        raise RunError(f"{folder} names the file {name[:80]!r}", "files in its own folder", "use another checkpoint")
