"""Weights that live on one stage and are read by others too: a copy goes out each step, its gradient comes home.

There is one storage and one gradient, whatever number of stages read the weight; the optimizer sees it once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from meshwright.capture.program import Program
from meshwright.layout.crossrun import Channel, Handover
from meshwright.layout.transport import use_transport
from meshwright.plan import Plan
from meshwright.runtime.step.parts import Part
from meshwright.schedule.tied_weights import TiedWeightTransfer, transfers

OUT, HOME = 5, 6
"""Numbers of the channels, after those of values and gradients."""


@dataclass(slots=True)
class TiedCopy:
    """A transfer under way. dtype, wide: of the copy and of its gradient. ready: the gradient, about to set out."""

    transfer: TiedWeightTransfer
    dtype: torch.dtype
    wide: torch.dtype
    out: Handover | None = field(default=None)
    ready: Tensor | None = field(default=None)
    returned: Handover | None = field(default=None)


class TiedReplicas:
    """This rank's transfers, given and taken, in one order on all ranks."""

    def __init__(
        self, plan: Plan, program: Program, parts: Sequence[Part], device: torch.device, channels: dict[int, Channel]
    ) -> None:
        self.device, self.out, self.home = device, channels[OUT], channels[HOME]
        self.parts = {part.stage.first: part for part in parts}
        own = {rank for part in parts for rank in part.stage.mesh.ranks}
        self.copies: list[TiedCopy] = []
        for transfer in transfers(plan, program) if len(plan.stages) > 1 else []:
            if own & {*transfer.owner.mesh.ranks, *transfer.replica.stage.mesh.ranks}:
                dtype = getattr(torch, program.parameter(transfer.name).type.dtype)
                self.copies.append(TiedCopy(transfer, dtype, getattr(torch, plan.parameters[transfer.name].dtype)))

    def send(self) -> None:
        """At the beginning of a step: copies set out for the tied replicas, taken where they are first needed."""
        rank = dist.get_rank()
        for one in self.copies:
            home = self.parts.get(one.transfer.owner.first) if rank in one.transfer.there.sources else None
            local = None if home is None else home.store.local(one.transfer.name).detach().to(one.dtype)
            one.out = Handover(one.transfer.there, local, one.dtype, self.device, self.out)

    def take(self, segment: int) -> None:
        """The copies that a segment reads, in its stage's store."""
        for one in self.copies:
            stage = one.transfer.replica.stage
            part = self.parts.get(stage.first)
            if part is None or segment not in stage.segments or one.transfer.name in part.store.copies:
                continue
            assert one.out is not None
            copy = one.out.wait()
            one.out = None
            assert copy is not None
            part.store.copies[one.transfer.name] = copy

    def give_back(self, segment: int) -> None:
        """Where a segment was the first of its stage to read them, and so its backward the last: gradients set out.

        In the order of the transfers: one that is ready before another waits for it, so that both ends count alike.
        """
        for one in self.copies:
            transfer = one.transfer
            part = self.parts.get(transfer.replica.stage.first)
            if part is None or segment != transfer.first or transfer.back is None:
                continue
            gradient = part.store.replica_gradient(transfer.name)
            if gradient is None:
                gradient = torch.zeros_like(part.store.copies[transfer.name], dtype=one.wide)
            with use_transport(part.transport):
                one.ready = transfer.replica.reduced(gradient, transfer.shape)
        for one in self.copies:
            if (
                one.transfer.back is None
                or one.returned is not None
                or one.transfer.replica.stage.first not in self.parts
            ):
                continue
            if one.ready is None:
                break
            one.returned = Handover(one.transfer.back, one.ready, one.wide, self.device, self.home)
            one.ready = None

    def collect(self) -> None:
        """At the end of a step: gradients come home and are added to the stored parameter's; all sends are over."""
        rank = dist.get_rank()
        for one in self.copies:
            if one.transfer.back is not None and one.returned is None:
                one.returned = Handover(one.transfer.back, None, one.wide, self.device, self.home)
        self.forget()
        for one in self.copies:
            if one.transfer.back is None or one.returned is None:
                continue
            found: Tensor | None = one.returned.wait()
            one.returned = None
            if rank in one.transfer.back.targets and found is not None:
                self.parts[one.transfer.owner.first].store.add_stored({one.transfer.name: found})

    def forget(self) -> None:
        """After evaluating: copies under way have arrived, nothing comes back."""
        for one in self.copies:
            if one.out is not None:
                one.out.wait()
                one.out = None
