"""A Route executed on a process group: slices as point-to-point messages, all of a phase at once."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from meshwright.errors import LayoutError
from meshwright.layout.crossmesh import Box, Move, Route


def hand_over(route: Route, local: Tensor | None, dtype: torch.dtype, device: torch.device) -> Tensor | None:
    """Every rank of both meshes calls this with what it holds, and gets what it wants; None for none.

    Ranks are those of the default process group.
    """
    rank = dist.get_rank()
    if rank in route.sources and (local is None or tuple(local.shape) != _shape(route.sources[rank])):
        given = None if local is None else tuple(local.shape)
        raise LayoutError(f"rank {rank} hands over {given}", f"its piece, of shape {_shape(route.sources[rank])}")
    wanted = route.targets.get(rank)
    result = None if wanted is None else torch.empty(_shape(wanted), dtype=dtype, device=device)
    held = (local, route.sources.get(rank))
    for phase in route.phases:
        _run(phase, rank, held, (result, wanted), dtype, device)
        held = (result, wanted)  # what a second phase sends lies in the result
    return result


Held = tuple[Tensor | None, Box | None]


def _run(
    phase: tuple[Move, ...], rank: int, held: Held, result: Held, dtype: torch.dtype, device: torch.device
) -> None:
    operations: list[dist.P2POp] = []
    arriving: list[tuple[Move, Tensor]] = []
    for move in phase:
        if move.source == move.target == rank:
            _view(result, move.box).copy_(_view(held, move.box))
        elif move.source == rank:
            operations.append(dist.P2POp(dist.isend, _view(held, move.box).contiguous(), move.target))
        elif move.target == rank:
            buffer = torch.empty(_shape(move.box), dtype=dtype, device=device)
            arriving.append((move, buffer))
            operations.append(dist.P2POp(dist.irecv, buffer, move.source))
    for work in dist.batch_isend_irecv(operations) if operations else ():
        work.wait()
    for move, buffer in arriving:
        _view(result, move.box).copy_(buffer)


def _shape(box: Box) -> tuple[int, ...]:
    return tuple(end - begin for begin, end in box)


def _view(held: Held, box: Box) -> Tensor:
    """The slice of a rank's piece that lies at `box` of the whole tensor."""
    tensor, own = held
    assert tensor is not None
    assert own is not None
    return tensor[tuple(slice(a - begin, b - begin) for (a, b), (begin, _) in zip(box, own, strict=True))]
