"""Weights as safetensors, under the model's own names: what other programs read."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from meshwright.errors import RunError
from meshwright.runtime.trainer import Trainer
from meshwright.runtime.weights.regions import whole

FILE_BYTES = 4 << 30


def export(trainer: Trainer, path: str | os.PathLike[str], *, file_bytes: int = FILE_BYTES) -> list[Path]:
    """Write the weights and buffers; call it on every rank. Returns the files.

    path: a `.safetensors` file, or a folder, where more than `file_bytes` are written as several files with an
    index. One file's tensors at a time are whole on rank 0.
    """
    try:
        from safetensors.torch import save_file
    except ImportError as error:
        raise RunError("safetensors is not installed", "it for export", "pip install 'meshwright[hf]'") from error
    target = Path(path)
    single = target.suffix == ".safetensors"
    state = trainer.state_dict()
    listed = _listing(trainer, state)
    groups = _groups(listed, None if single else file_bytes)
    if not single and dist.get_rank() == 0:
        target.mkdir(parents=True, exist_ok=True)
    files = [_file(target, single, number, len(groups)) for number in range(len(groups))]
    for file, names in zip(files, groups, strict=True):
        whole = {name: _on_first(state.get(name), listed[name], trainer.device) for name in names}
        if dist.get_rank() == 0:
            kept = {name: tensor.contiguous() for name, tensor in whole.items() if tensor is not None}
            save_file(kept, file, metadata={"format": "pt"})
        del whole
    if len(files) > 1 and dist.get_rank() == 0:
        places = {name: file.name for file, names in zip(files, groups, strict=True) for name in names}
        size = sum(entry.bytes for entry in listed.values())
        index = {"metadata": {"total_size": size}, "weight_map": places}
        (target / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")
    dist.barrier()
    return files


@dataclass(frozen=True, slots=True)
class _Entry:
    """A tensor that some ranks have: its shape and dtype, and the lowest of them."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    rank: int

    @property
    def bytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


def _listing(trainer: Trainer, state: dict[str, Tensor]) -> dict[str, _Entry]:
    """All that the model has, wherever it lives, in one order on every rank."""
    own = {name: _Entry(tuple(tensor.shape), tensor.dtype, dist.get_rank()) for name, tensor in state.items()}
    if len(trainer.plan.stages) == 1:
        return {name: replace(entry, rank=0) for name, entry in own.items()}
    gathered: list[dict[str, _Entry]] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(gathered, own)
    found: dict[str, _Entry] = {}
    for rank in gathered:
        for name, entry in rank.items():
            found.setdefault(name, entry)
    return found


def _on_first(tensor: Tensor | None, entry: _Entry, device: torch.device) -> Tensor | None:
    """A whole tensor on rank 0, from the rank that speaks for its stage."""
    whole = None if tensor is None else _whole(tensor)
    rank = dist.get_rank()
    if entry.rank == 0 or rank not in (0, entry.rank):
        return whole
    if rank == entry.rank:
        assert whole is not None
        dist.send(whole.contiguous().to(device), 0)
        return None
    room = torch.empty(entry.shape, dtype=entry.dtype, device=device)
    dist.recv(room, entry.rank)
    return room.cpu()


def _whole(tensor: Tensor) -> Tensor:
    """In memory of its own: tied names may not share any in a file."""
    return whole(tensor.detach()).cpu().clone()


def _groups(listed: dict[str, _Entry], limit: int | None) -> list[list[str]]:
    groups: list[list[str]] = [[]]
    room = limit
    for name, entry in listed.items():
        if room is not None and entry.bytes > room and groups[-1]:
            groups.append([])
            room = limit
        groups[-1].append(name)
        room = None if room is None else room - entry.bytes
    return groups


def _file(target: Path, single: bool, number: int, count: int) -> Path:
    if single:
        return target
    name = "model.safetensors" if count == 1 else f"model-{number + 1:05d}-of-{count:05d}.safetensors"
    return target / name
