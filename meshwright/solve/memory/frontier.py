"""The whole time-memory curve of a model on one device, and where the known ways to save memory lie on it.

Ours: the exact choice per instance at budgets between the least possible and what keeping everything takes. The others
are priced by the same kernels: keep all; full per-block (every block keeps its input); Chen's square root (as many
checkpoints as segments between two, each segment run forward twice); selective (products, convolutions and attention
kept); Rotor's nested order. For Rotor and Chen, which know of no gradients of parameters, those count at the step only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isqrt, prod

from meshwright.capture.program import Program
from meshwright.cluster import Device, Mesh
from meshwright.errors import PlanError
from meshwright.generate.cut import cut_at, read_by_backward
from meshwright.generate.joint import Joint
from meshwright.generate.program import sharded_segments
from meshwright.generate.storage import producer, storage_bytes
from meshwright.profile.operands import type_bytes
from meshwright.solve.memory.curve import Kept, measure
from meshwright.solve.memory.curves import Curves, curves
from meshwright.solve.memory.nodes import PRODUCTS, NodeCosts
from meshwright.solve.memory.plan import one_device_plan
from meshwright.solve.memory.rotor import Link, Move, Saving, rotor
from meshwright.solve.memory.rotor import peak_of as peak_of_moves
from meshwright.solve.memory.traced import traced_for

KEPT_WHERE_SELECTIVE = (*PRODUCTS, "aten.convolution", "aten._scaled_dot_product", "aten._flash_attention")


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
    return Curve(tuple(_ours(found, points)), tuple(_others(found, mesh.device, compiled)))


def _ours(found: Curves, points: int) -> Iterator[Point]:
    least, most = found.least_bytes, found.peak_of([_fastest(options) for options in found.options])
    last = -1
    for index in range(points):
        budget = most - (most - least) * index // max(1, points - 1)
        predicted = found.within(budget, "flat").predicted
        if index == 0 or predicted.peak_bytes != last:
            yield Point("ours", predicted.peak_bytes, predicted.step_s)
        last = predicted.peak_bytes


def _fastest(options: Sequence[Kept]) -> Kept:
    return min(options, key=lambda kept: (kept.seconds, kept.resident_bytes))


def _whole(options: Sequence[Kept]) -> list[Kept]:
    return [kept for kept in options if kept.chunks == 1]


def _others(found: Curves, device: Device, compiled: bool) -> Iterator[Point]:
    last = len(found.options) - 1
    all_kept = [_fastest(_whole(options)) for options in found.options]
    yield _point("keep all", found, all_kept)
    least = [min(_whole(options), key=lambda kept: (kept.resident_bytes, kept.seconds)) for options in found.options]
    yield _point("full per-block", found, [*least[:last], all_kept[last]])
    yield _point("selective", found, _selective(found, device, compiled))
    chain, input_bytes = _links(found, all_kept)
    yield _played("Chen's square root", found, chain, input_bytes, chen(len(chain)))
    room = peak_of_moves(chain, [*_forwards(len(chain)), *_backwards(len(chain))], input_bytes)
    for share in (0.75, 0.5, 0.35, 0.25):
        order = rotor(chain, int(share * room), input_bytes, slots=200)
        if order is not None:
            yield _played(f"Rotor at {share:.0%}", found, chain, input_bytes, order.moves)


def _point(name: str, found: Curves, picked: Sequence[Kept]) -> Point:
    return Point(name, found.peak_of(picked), sum(kept.seconds for kept in picked) + found.step_s)


def _selective(found: Curves, device: Device, compiled: bool) -> list[Kept]:
    costs, traced = NodeCosts(device, compiled, found.plan.mesh), traced_for(device)
    made: dict[int, Kept] = {}
    picked = []
    for graph in sharded_segments(found.program, found.plan):
        if id(graph) not in made:
            made[id(graph)] = _selective_way(traced(graph), costs)
        picked.append(made[id(graph)])
    return picked


def _selective_way(joint: Joint, costs: NodeCosts) -> Kept:
    def is_kept(target: str) -> bool:
        return target.startswith(KEPT_WHERE_SELECTIVE)

    read = [n for n in read_by_backward(joint) if n.op == "call_function" and not is_kept(str(producer(n).target))]
    again = tuple(joint.names[node] for node in read)
    keep = tuple(name for node, name in joint.names.items() if is_kept(str(producer(node).target)))
    cut = cut_at(joint, again, keep)
    held = sum(storage_bytes(node) for node, name in joint.names.items() if name in cut.saved)
    return measure(joint, cut, costs, recompute=again, keep=keep, resident_bytes=held, recompute_s=0.0)


def _links(found: Curves, all_kept: Sequence[Kept]) -> tuple[list[Link], int]:
    """The segments as Rotor has them: what each saves, its output included."""
    graphs = sharded_segments(found.program, found.plan)
    links = []
    for graph, kept in zip(graphs, all_kept, strict=True):
        values = graph.values()
        output = sum(type_bytes(values[name].type) for name in graph.outputs)
        saving = Saving(
            kept.backward_s, kept.resident_bytes + output, kept.forward_transient_bytes, kept.backward_transient_bytes
        )
        links.append(Link(kept.forward_s, output, (saving,), kept.forward_transient_bytes))
    return links, sum(type_bytes(value.type) for value in graphs[0].inputs)


def _played(name: str, found: Curves, chain: Sequence[Link], input_bytes: int, moves: Sequence[Move]) -> Point:
    seconds = found.step_s
    for move in moves:
        link = chain[move.segment]
        seconds += link.savings[0].backward_s if move.kind == "backward" else link.forward_s
    peak = found.static_bytes + max(peak_of_moves(chain, moves, input_bytes), sum(found.gradients))
    return Point(name, peak, seconds)


def chen(segments: int) -> list[Move]:
    """Checkpoints every so many segments that there are as many between two; the last group is kept at once."""
    width = max(1, isqrt(segments))
    starts = list(range(0, segments, width))
    moves = [Move("pass", k) for k in range(starts[-1])]
    for start in reversed(starts):
        group = range(start, min(start + width, segments))
        moves += [Move("forward", k) for k in group] + [Move("backward", k) for k in reversed(group)]
    return moves


def _forwards(count: int) -> list[Move]:
    return [Move("forward", k) for k in range(count)]


def _backwards(count: int) -> list[Move]:
    return [Move("backward", k) for k in reversed(range(count))]
