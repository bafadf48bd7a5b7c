"""A value handed from one mesh to another, its gradient on the way back: what printed code of several stages calls."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from meshwright.cluster import Mesh
from meshwright.layout import Layout
from meshwright.layout.crossmesh import Route, Side, make_route
from meshwright.layout.crossrun import Channel, Handover

FIRST = 16
"""The channel of the first message; the runtime's own have the numbers below."""

_leaving: list[Handover] = []
"""What has been sent and may not have left yet: whoever waits for one message may have to take another first."""


def hand_over(
    x: Tensor | None,
    source: tuple[str, Mesh],
    target: tuple[str, Mesh],
    *,
    number: int,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    grad: bool = True,
) -> Tensor:
    """This rank's piece of a value in the target's layout. source, target: layout and mesh; number: of the message.

    Every rank of both meshes calls it. A rank that only gives gets a zero, which stands for the value in what it calls
    `backward` on: there its gradient comes back.
    """
    sides = [Side(mesh, Layout.parse(text)) for text, mesh in (source, target)]
    there, back = (make_route("direct", shape, *pair) for pair in (sides, reversed(sides)))
    given = torch.zeros((), dtype=dtype) if x is None else x
    if not grad:
        found = _carry(there, x, dtype, FIRST + 2 * number)
        return given.new_zeros(()) if found is None else found
    if not given.requires_grad:
        given.requires_grad_()
    made: Tensor = _HandOver.apply(given, there, back, FIRST + 2 * number)  # type: ignore[no-untyped-call]
    return made


def _carry(route: Route, local: Tensor | None, dtype: torch.dtype, channel: int) -> Tensor | None:
    """What this rank wants of the value; it waits for nothing else."""
    device = torch.device("cpu") if local is None else local.device
    moving = Handover(route, local, dtype, device, Channel(channel))
    if dist.get_rank() in route.targets:
        return moving.wait()
    _leaving[:] = [*(one for one in _leaving if not one.done()), moving]
    return None


class _HandOver(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, given: Tensor, there: Route, back: Route, channel: int) -> Tensor:
        ctx.back, ctx.channel, ctx.dtype, ctx.shape = back, channel + 1, given.dtype, given.shape
        gives = dist.get_rank() in there.sources
        found = _carry(there, given.detach() if gives else None, given.dtype, channel)
        return given.new_zeros(()) if found is None else found

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        gives = dist.get_rank() in ctx.back.sources
        found = _carry(ctx.back, gradient.contiguous() if gives else None, ctx.dtype, ctx.channel)
        return gradient.new_zeros(ctx.shape) if found is None else found, None, None, None
