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
from meshwright.layout import Layout
from meshwright.layout.crossmesh import Route, Side, route
from meshwright.layout.crossrun import Channel, Handover, begin
from meshwright.layout.transport import use_transport
from meshwright.plan import Plan, Stage
from meshwright.runtime.parts import Part
from meshwright.runtime.pipeline import Form, pair_of

OUT, HOME = 5, 6
"""Numbers of the channels, after those of values and gradients."""


@dataclass(slots=True)
class Loan:
    """A parameter of `home` that `guest` reads, first in segment `first`. ready: its gradient, about to set out."""

    name: str
    home: Stage
    guest: Form
    first: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    wide: torch.dtype
    there: Route
    back: Route | None
    lent: Handover | None = field(default=None)
    ready: Tensor | None = field(default=None)
    returned: Handover | None = field(default=None)


class Guests:
    """This rank's loans, given and taken, in one order on all ranks."""

    def __init__(
        self, plan: Plan, program: Program, parts: Sequence[Part], device: torch.device, channels: dict[int, Channel]
    ) -> None:
        self.device, self.out, self.home = device, channels[OUT], channels[HOME]
        self.parts = {part.stage.first: part for part in parts}
        own = {rank for part in parts for rank in part.stage.mesh.ranks}
        self.loans: list[Loan] = []
        pair = pair_of(plan) if len(plan.stages) > 1 else None
        for stage in plan.stages:
            for name, text in stage.guests.items():
                home = plan.home(program, name)
                if pair is None or not own & {*home.mesh.ranks, *stage.mesh.ranks}:
                    continue
                parameter, entry = program.parameter(name), plan.parameters[name]
                form, shape = Form(stage, Layout.parse(text)), parameter.type.sizes
                stored = Side(home.mesh, Layout.parse(entry.storage))
                wide: torch.dtype = getattr(torch, entry.dtype)
                there = route(shape, stored, form.side, parameter.type.itemsize, pair)
                back = route(shape, form.side, stored, wide.itemsize, pair) if parameter.trainable else None
                first = next(index for index in stage.segments if name in program.segments[index].params)
                dtype = getattr(torch, parameter.type.dtype)
                self.loans.append(Loan(name, home, form, first, shape, dtype, wide, there, back))

    def lend(self) -> None:
        """At the beginning of a step: copies set out for their guests, which take them where they first need them."""
        rank = dist.get_rank()
        for loan in self.loans:
            home = self.parts.get(loan.home.first) if rank in loan.there.sources else None
            local = None if home is None else home.store.locals[loan.name].detach().to(loan.dtype)
            loan.lent = begin(loan.there, local, loan.dtype, self.device, self.out)

    def take(self, segment: int) -> None:
        """The copies that a segment reads, in its stage's store."""
        for loan in self.loans:
            part = self.parts.get(loan.guest.stage.first)
            if part is None or segment not in loan.guest.stage.segments or loan.name in part.store.copies:
                continue
            assert loan.lent is not None
            copy = loan.lent.wait()
            loan.lent = None
            assert copy is not None
            part.store.copies[loan.name] = copy

    def give_back(self, segment: int) -> None:
        """Where a segment was the first of its stage to read them, and so its backward the last: gradients set out.

        In the order of the loans: one that is ready before another waits for it, so that both ends count alike.
        """
        for loan in self.loans:
            part = self.parts.get(loan.guest.stage.first)
            if part is None or segment != loan.first or loan.back is None:
                continue
            gradient = part.store.guest_gradient(loan.name)
            if gradient is None:
                gradient = torch.zeros_like(part.store.copies[loan.name], dtype=loan.wide)
            with use_transport(part.transport):
                loan.ready = loan.guest.reduced(gradient, loan.shape)
        for loan in self.loans:
            if loan.back is None or loan.returned is not None or loan.guest.stage.first not in self.parts:
                continue
            if loan.ready is None:
                break
            loan.returned = begin(loan.back, loan.ready, loan.wide, self.device, self.home)
            loan.ready = None

    def collect(self) -> None:
        """At the end of a step: gradients come home and are added to the stored parameter's; all sends are over."""
        rank = dist.get_rank()
        for loan in self.loans:
            if loan.back is not None and loan.returned is None:
                loan.returned = begin(loan.back, None, loan.wide, self.device, self.home)
        for loan in self.loans:
            if loan.lent is not None:
                loan.lent.wait()
                loan.lent = None
            if loan.back is None or loan.returned is None:
                continue
            found: Tensor | None = loan.returned.wait()
            loan.returned = None
            if rank in loan.back.targets and found is not None:
                self.parts[loan.home.first].store.add_stored({loan.name: found})

    def forget(self) -> None:
        """After evaluating: what was lent is over, nothing comes back."""
        for loan in self.loans:
            if loan.lent is not None:
                loan.lent.wait()
                loan.lent = None
