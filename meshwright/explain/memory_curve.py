"""The time-memory frontier of a model on one device, and the known methods of activation checkpointing next to it.

Points of ours are plans at budgets between the least possible and what keeping everything takes, in as many
micro-batches as are fastest. The other points are plans of one micro-batch under the pin `recompute`:

keep       everything is kept
full       every block keeps its input
sqrt       Chen's square root: as many checkpoints as segments between two, each segment run forward twice
selective  products, convolutions and attention are kept
rotor      Rotor's nested order, at parts of the activations
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import prod

from meshwright.capture.program import Program
from meshwright.cluster import Mesh
from meshwright.errors import PlanError
from meshwright.plan import Plan
from meshwright.planner.memory.curves import Curves
from meshwright.planner.memory.methods import order_by
from meshwright.planner.one_device import OneDeviceSearch, microbatch_counts, one_device_cluster
from meshwright.planner.request import PlanRequest
from meshwright.price.parameter import Setting

SHARES = (0.75, 0.5, 0.35, 0.25)
"""Parts of the activations that Rotor may keep."""


@dataclass(frozen=True, slots=True)
class Point:
    """A plan on the frontier: its name, its peak in bytes per device, the seconds of its step, its micro-batches."""

    name: str
    peak_bytes: int
    step_s: float
    microbatches: int = 1

    @classmethod
    def of(cls, name: str, plan: Plan) -> Point:
        return cls(name, plan.predicted.peak_bytes, plan.predicted.step_s, plan.microbatches)


@dataclass(frozen=True, slots=True)
class Curve:
    """ours: from most bytes to least, seconds never falling. others: the known methods."""

    ours: tuple[Point, ...]
    others: tuple[Point, ...]


def one_device_frontier(
    program: Program, mesh: Mesh, *, optimizer: str, precision: str, compiled: bool, points: int = 24
) -> Curve:
    """The frontier on a mesh of one device. Raises PlanError where it has several."""
    count = prod(mesh.sizes)
    if count != 1:
        raise PlanError(f"a mesh of {count} devices", "one device", "use `meshwright plan --memory` for each budget")
    setting = Setting(optimizer, precision, compile=compiled)
    request = PlanRequest(program, one_device_cluster(mesh.device), setting=setting)
    search = OneDeviceSearch(request, mesh, microbatch_counts(request, mesh))
    others = [*_others(search.curves(1))]
    ours = _ours(search, points, [one.peak_bytes for one in others])
    return Curve(tuple(ours), tuple(others))


def _ours(search: OneDeviceSearch, points: int, others: Sequence[int]) -> list[Point]:
    """The Pareto frontier, from most bytes to least. others: peaks of known methods, below which one more is added."""
    roomy, least = search.within(sys.maxsize), search.least_bytes
    most = roomy.predicted.peak_bytes if roomy else least
    budgets = [most - (most - least) * index // max(1, points - 1) for index in range(1, points)]
    budgets += [peak for peak in [min(others)] if peak < least]
    plans = [roomy, *map(search.within, budgets)]
    met = sorted({Point.of("ours", plan) for plan in plans if plan}, key=lambda one: (one.step_s, one.peak_bytes))
    kept: list[Point] = []
    for point in met:
        if not kept or point.peak_bytes < kept[-1].peak_bytes:
            kept.append(point)
    return kept


def _others(found: Curves) -> Iterator[Point]:
    whole = Point.of("keep all", found.written(found.fixed("keep"), None, 0.0))
    yield whole
    for name, method in (("full per-block", "full"), ("selective", "selective")):
        yield Point.of(name, found.written(found.fixed(method), None, 0.0))
    with suppress(PlanError):  # where a layer must not run twice
        yield from _ordered("Chen's square root", found, "sqrt", 0)
    kept = whole.peak_bytes - found.static_bytes
    for share in SHARES:
        yield from _ordered(f"Rotor at {share:.0%}", found, "rotor", int(share * kept))


def _ordered(name: str, found: Curves, method: str, room: int) -> Iterator[Point]:
    """The point of a method with a nested order, if it has one within `room` bytes."""
    order = order_by(found.chained(), method, room)
    if order is not None:
        steps = tuple(f"{kind} {index}" for kind, index in order.steps)
        yield Point.of(name, found.written(order.picked, None, 0.0, steps))
