"""Weights that live on one stage and are read by others too: who lends what to whom, by which routes."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.capture.program import ITEM_BYTES, Program
from meshwright.layout import Layout
from meshwright.layout.crossmesh import Route, Side, route
from meshwright.plan import Plan, Stage
from meshwright.schedule.edges import Form, pair_of


@dataclass(frozen=True, slots=True)
class Loan:
    """A parameter of `home` that `guest` reads, first in segment `first`: its copy comes from storage, its gradient
    goes back to storage."""

    name: str
    home: Stage
    guest: Form
    first: int
    shape: tuple[int, ...]
    there: Route
    back: Route | None


def loans(plan: Plan, program: Program) -> list[Loan]:
    """In one order on all ranks."""
    found: list[Loan] = []
    if not any(stage.guests for stage in plan.stages):
        return found
    pair = pair_of(plan)
    for stage in plan.stages:
        for name, text in stage.guests.items():
            home, parameter, entry = plan.home(program, name), program.parameter(name), plan.parameters[name]
            form, shape = Form(stage, Layout.parse(text)), parameter.type.sizes
            stored, wide = Side(home.mesh, Layout.parse(entry.storage)), ITEM_BYTES[entry.dtype]
            there = route(shape, stored, form.side, parameter.type.itemsize, pair)
            back = route(shape, form.side, stored, wide, pair) if parameter.trainable else None
            first = next(index for index in stage.segments if name in program.segments[index].params)
            found.append(Loan(name, home, form, first, shape, there, back))
    return found
