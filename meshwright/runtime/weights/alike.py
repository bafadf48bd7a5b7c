"""Whether all ranks begin with the same weights: each takes its piece of its own copy."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from meshwright.errors import RunError

_WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.int64}
"""Integers of an element's size: their sum is exact in any order."""


def check_weights_alike(named: Mapping[str, Tensor]) -> None:
    """Every rank calls it, with tensors of the same names; such as have no values yet are left out."""
    if dist.get_world_size() == 1:
        return
    own = {name: sum_of_bits(one) for name, one in named.items() if not one.is_meta and not isinstance(one, DTensor)}
    found: list[dict[str, int]] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(found, own)
    for rank, other in enumerate(found):
        for name, first in found[0].items():
            if other.get(name, first) != first:
                raise RunError(
                    f"ranks 0 and {rank} begin with different values of {name}",
                    "the same weights on all ranks: each keeps its part of what it was given",
                    "call torch.manual_seed with one seed on all ranks before the model is built, load one checkpoint "
                    "on all of them, or pass the function that builds the model",
                )


def sum_of_bits(tensor: Tensor) -> int:
    """Of a tensor's bits, as integers."""
    if tensor.layout is not torch.strided:
        return sum(map(sum_of_bits, _dense(tensor.detach())))
    bits = tensor.detach().resolve_conj().resolve_neg().contiguous().view(-1)
    return int(bits.view(_WHOLE[bits.element_size()]).sum(dtype=torch.int64)) if bits.numel() else 0


def _dense(tensor: Tensor) -> tuple[Tensor, ...]:
    """What a sparse tensor is made of."""
    if tensor.layout is torch.sparse_coo:
        tensor = tensor.coalesce()
        return tensor.indices(), tensor.values()
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    return tensor.ccol_indices(), tensor.row_indices(), tensor.values()
