"""The whole time-memory curve of a model on one device, and where the known ways to save memory lie on it.

Ours: what `plan` answers at budgets between the least possible and what keeping everything takes, in as many
micro-batches as are fastest. The others are plans of one micro-batch that the pin `recompute` gives, by the same prices
and counted in the same way: keep all (`keep`); full
per-block (`full`: every block keeps its input); Chen's square root (`sqrt`: as many checkpoints as segments between
two, each segment run forward twice); selective (`selective`: products, convolutions and attention kept); Rotor's nested
order (`rotor`) at parts of the activations.
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
from meshwright.planner.one_device import OneDeviceAnswers
from meshwright.price.parameter import Setting

SHARES = (0.75, 0.5, 0.35, 0.25)
"""Of the activations, for Rotor."""


@dataclass(frozen=True, slots=True)
class Point:
    """One way to run a step: how it is called, the bytes it peaks at, the seconds it takes, in how many parts."""

    name: str
    peak_bytes: int
    step_s: float
    microbatches: int = 1

    @classmethod
    def of(cls, name: str, plan: Plan) -> Point:
        return cls(name, plan.predicted.peak_bytes, plan.predicted.step_s, plan.microbatches)


@dataclass(frozen=True, slots=True)
class Curve:
    """ours: from most bytes to least; the seconds never fall. others: by name."""

    ours: tuple[Point, ...]
    others: tuple[Point, ...]


def one_device_frontier(
    program: Program, mesh: Mesh, *, optimizer: str, precision: str, compiled: bool, points: int = 24
) -> Curve:
    """`mesh`: of one device. Raises PlanError where it has several."""
    count = prod(mesh.sizes)
    if count != 1:
        raise PlanError(f"a mesh of {count} devices", "one device", "use `meshwright plan --memory` for each budget")
    answers = OneDeviceAnswers(program, mesh, Setting(optimizer, precision, compile=compiled))
    others = [*_others(answers.whole)]
    ours = _ours(answers, points, [one.peak_bytes for one in others])
    return Curve(tuple(ours), tuple(others))


def _ours(answers: OneDeviceAnswers, points: int, others: Sequence[int]) -> list[Point]:
    """From most bytes to least, none that another is no worse than. others: peaks below which one more is asked for."""
    roomy, least = answers.within(sys.maxsize), answers.least_bytes
    most = roomy.predicted.peak_bytes if roomy else least
    budgets = [most - (most - least) * index // max(1, points - 1) for index in range(1, points)]
    budgets += [peak for peak in [min(others)] if peak < least]
    plans = [roomy, *map(answers.within, budgets)]
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
    """Of a method whose layers may run forward more than once, where it has an order in so much room."""
    order = order_by(found.chained(), method, room)
    if order is not None:
        steps = tuple(f"{kind} {index}" for kind, index in order.steps)
        yield Point.of(name, found.written(order.picked, None, 0.0, steps))
