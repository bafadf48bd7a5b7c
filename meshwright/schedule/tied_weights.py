"""Weights that one stage owns and others read too: what goes to each tied replica and back, by which routes."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.capture.program import ITEM_BYTES, Program
from meshwright.layout import Layout
from meshwright.layout.crossmesh import Route, Side, route
from meshwright.plan import Plan, Stage
from meshwright.schedule.edges import Form, pair_of


@dataclass(frozen=True, slots=True)
class TiedWeightTransfer:
    """A parameter of `owner` that `replica` reads, first in segment `first`: its copy comes from storage, its gradient
    goes back to storage."""

    name: str
    owner: Stage
    replica: Form
    first: int
    shape: tuple[int, ...]
    there: Route
    back: Route | None


def transfers(plan: Plan, program: Program) -> list[TiedWeightTransfer]:
    """In one order on all ranks."""
    found: list[TiedWeightTransfer] = []
    if not any(stage.tied_replicas for stage in plan.stages):
        return found
    pair = pair_of(plan)
    for stage in plan.stages:
        for name, text in stage.tied_replicas.items():
            home, parameter, entry = plan.home(program, name), program.parameter(name), plan.parameters[name]
            form, shape = Form(stage, Layout.parse(text)), parameter.type.sizes
            stored, wide = Side(home.mesh, Layout.parse(entry.storage)), ITEM_BYTES[entry.dtype]
            there = route(shape, stored, form.side, parameter.type.itemsize, pair)
            back = route(shape, form.side, stored, wide, pair) if parameter.trainable else None
            first = next(index for index in stage.segments if name in program.segments[index].params)
            found.append(TiedWeightTransfer(name, home, form, first, shape, there, back))
    return found
