"""The whole time-memory curve of a model on one device, and where the known ways to save memory lie on it.

Ours: the exact choice per instance at budgets between the least possible and what keeping everything takes. The others
are priced by the same kernels: keep all; full per-block (every block keeps its input); Chen's square root (as many
checkpoints as segments between two, each segment run forward twice); selective (products, convolutions and attention
kept); Rotor's nested order. For Rotor and Chen, which know of no gradients of parameters, those count at the step only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from meshwright.capture.program import Program
from meshwright.cluster import Mesh
from meshwright.errors import PlanError
from meshwright.generate.program import sharded_segments
from meshwright.plan import Prediction
from meshwright.profile.operands import type_bytes
from meshwright.remat.curve import Kept
from meshwright.solve.memory.curves import Curves, curves
from meshwright.solve.memory.methods import all_kept, chen
from meshwright.solve.memory.plan import one_device_plan
from meshwright.solve.memory.rotor import Link, Move, Saving, rotor
from meshwright.solve.memory.rotor import peak_of as peak_of_moves


@dataclass(frozen=True, slots=True)
class Point:
    """One way to run a step: how it is called, the bytes it peaks at, the seconds it takes."""

    name: str
    peak_bytes: int
    step_s: float


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
    plan = one_device_plan(program, mesh, optimizer=optimizer, precision=precision)
    found = curves(program, plan, mesh.device, fused=compiled)
    return Curve(tuple(_ours(found, points)), tuple(_others(found)))


def _ours(found: Curves, points: int) -> Iterator[Point]:
    fastest = [min(ways, key=lambda kept: (kept.seconds, kept.resident_bytes)) for ways in found.options]
    least, most = found.least_bytes, found.peak_of(fastest)
    last = -1
    for index in range(points):
        budget = most - (most - least) * index // max(1, points - 1)
        predicted = found.within(budget, "flat").predicted
        if index == 0 or predicted.peak_bytes != last:
            yield Point("ours", predicted.peak_bytes, predicted.step_s)
        last = predicted.peak_bytes


def _others(found: Curves) -> Iterator[Point]:
    whole = found.written(found.fixed("keep"), None, 0.0).predicted
    yield Point("keep all", whole.peak_bytes, whole.step_s)
    for name, method in (("full per-block", "full"), ("selective", "selective")):
        made = found.written(found.fixed(method), None, 0.0).predicted
        yield Point(name, made.peak_bytes, made.step_s)
    chain, input_bytes = _links(found, all_kept(found.options))
    yield _played("Chen's square root", found, whole, chain, input_bytes, chen(len(chain)))
    room = peak_of_moves(chain, [*_forwards(len(chain)), *_backwards(len(chain))], input_bytes)
    for share in (0.75, 0.5, 0.35, 0.25):
        order = rotor(chain, int(share * room), input_bytes, slots=200)
        if order is not None:
            yield _played(f"Rotor at {share:.0%}", found, whole, chain, input_bytes, order.moves)


def _links(found: Curves, whole: Sequence[Kept]) -> tuple[list[Link], int]:
    """The segments as Rotor has them: what each saves, its output included."""
    graphs = sharded_segments(found.program, found.plan)
    links = []
    for graph, kept in zip(graphs, whole, strict=True):
        values = graph.values()
        output = sum(type_bytes(values[name].type) for name in graph.outputs)
        saving = Saving(
            kept.backward_s, kept.resident_bytes + output, kept.forward_transient_bytes, kept.backward_transient_bytes
        )
        links.append(Link(kept.forward_s, output, (saving,), kept.forward_transient_bytes))
    return links, sum(type_bytes(value.type) for value in graphs[0].inputs)


def _played(
    name: str, found: Curves, whole: Prediction, chain: Sequence[Link], input_bytes: int, moves: Sequence[Move]
) -> Point:
    """whole: of the step with everything kept; what the host takes to ask for more is not counted."""
    seconds = found.step_s + whole.parameters_s
    for move in moves:
        link = chain[move.segment]
        seconds += link.savings[0].backward_s if move.kind == "backward" else link.forward_s
    peak = found.static_bytes + max(peak_of_moves(chain, moves, input_bytes), sum(found.gradients))
    return Point(name, peak, max(seconds, whole.step_s))


def _forwards(count: int) -> list[Move]:
    return [Move("forward", k) for k in range(count)]


def _backwards(count: int) -> list[Move]:
    return [Move("backward", k) for k in reversed(range(count))]
