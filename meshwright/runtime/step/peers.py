"""Debug mode: ranks that should hold the same part of the batch and do not are named."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256

import torch
import torch.distributed as dist
from torch import Tensor

from meshwright.errors import RunError
from meshwright.runtime.step.batches import Index


def check_peers(parts: list[dict[str, Tensor]], where: Mapping[str, Index]) -> None:
    """Compare the ranks' parts of the batch; every rank raises the same."""
    own = {name: (str(where[name]), _digest([part[name] for part in parts])) for name in where}
    gathered: list[dict[str, tuple[str, str]]] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(gathered, own)
    for name in dict.fromkeys(name for found in gathered for name in found):
        first: dict[str, tuple[int, str]] = {}
        for rank, found in enumerate(gathered):
            if name not in found:
                continue  # its stage does not read it
            place, digest = found[name]
            other, same = first.setdefault(place, (rank, digest))
            if same != digest:
                raise RunError(
                    f"ranks {other} and {rank} hold different {name!r} for the same part of the batch, {place}",
                    "the same samples on ranks that share a part",
                    "seed and shuffle alike on every rank, or read with mw.loader",
                )


def _digest(tensors: list[Tensor]) -> str:
    found = sha256()
    for tensor in tensors:
        found.update(str(tuple(tensor.shape)).encode())
        found.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()
