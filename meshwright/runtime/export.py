"""Weights as safetensors, under the model's own names: what other programs read."""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from meshwright.errors import RunError
from meshwright.runtime.trainer import Trainer

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
    groups = _groups(trainer.state_dict(), None if single else file_bytes)
    if not single and dist.get_rank() == 0:
        target.mkdir(parents=True, exist_ok=True)
    files = [_file(target, single, number, len(groups)) for number in range(len(groups))]
    state = trainer.state_dict()
    for file, names in zip(files, groups, strict=True):
        whole = {name: _whole(state[name]) for name in names}
        if dist.get_rank() == 0:
            save_file({name: tensor.contiguous() for name, tensor in whole.items()}, file, metadata={"format": "pt"})
        del whole
    if len(files) > 1 and dist.get_rank() == 0:
        places = {name: file.name for file, names in zip(files, groups, strict=True) for name in names}
        size = sum(tensor.numel() * tensor.element_size() for tensor in state.values())
        index = {"metadata": {"total_size": size}, "weight_map": places}
        (target / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")
    dist.barrier()
    return files


def _whole(tensor: Tensor) -> Tensor:
    """In memory of its own: tied names may not share any in a file."""
    return tensor.full_tensor().cpu().clone() if isinstance(tensor, DTensor) else tensor.detach().cpu().clone()


def _groups(state: dict[str, Tensor], limit: int | None) -> list[list[str]]:
    groups: list[list[str]] = [[]]
    room = limit
    for name, tensor in state.items():
        size = tensor.numel() * tensor.element_size()
        if room is not None and size > room and groups[-1]:
            groups.append([])
            room = limit
        groups[-1].append(name)
        room = None if room is None else room - size
    return groups


def _file(target: Path, single: bool, number: int, count: int) -> Path:
    if single:
        return target
    name = "model.safetensors" if count == 1 else f"model-{number + 1:05d}-of-{count:05d}.safetensors"
    return target / name
