"""Named rematerialisation methods: what each saves of a plan's segments, and the order in which they run.

keep        all that autograd keeps
full        every segment keeps what it is given, the last one all
selective   products, convolutions and attention are kept
sqrt        Chen's: as many checkpoints as segments between two; each segment but those of the last group runs twice
rotor       Rotor as published: nested, a segment keeps all or nothing
flat        any point of a segment's frontier, every segment forward once
nested      any point, in a nested order
auto        the fastest of flat, nested and offloading

Nested orders for a plan on one device: Rotor over the chain, each segment saving in any of the ways of its curve.

Where even the segments' inputs take too much memory, segments run forward more than once (`schedule.nested`). Rotor's
dynamic programme finds the order; its memory is then played step by step, with the peaks of the traced pairs, and the
fastest order that fits is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import isqrt

from meshwright.capture.program import Program
from meshwright.cost.traced.multiply import PRODUCTS
from meshwright.cost.traced.nodes import NodeCosts
from meshwright.cost.traced.storage import producer
from meshwright.errors import PlanError
from meshwright.generate.cut import read_by_backward
from meshwright.generate.joint import Joint
from meshwright.generate.program import sharded_segments
from meshwright.plan import Plan
from meshwright.planner.effort import RETRIES
from meshwright.planner.memory.rotor import Link, Move, Order, Saving, rotor
from meshwright.remat.chained import Chained, Nested, played
from meshwright.remat.curve import RematPoint
from meshwright.remat.traced import traced_for
from meshwright.remat.way import cut_way

KEPT_WHERE_SELECTIVE = (*PRODUCTS, "aten.convolution", "aten._scaled_dot_product", "aten._flash_attention")


def all_kept(options: Sequence[Sequence[RematPoint]]) -> list[RematPoint]:
    """The fastest point of every segment in one chunk."""
    return [min(_whole(ways), key=lambda kept: (kept.seconds, kept.resident_bytes)) for ways in options]


def fixed_ways(
    program: Program, plan: Plan, options: Sequence[Sequence[RematPoint]], method: str, fused: bool = False
) -> list[RematPoint]:
    """The point of every segment under one of `FIXED`.

    fused: the pairs of forward and backward will be compiled.
    """
    kept = all_kept(options)
    if method == "keep":
        return kept
    if method == "full":
        return [*map(least_kept, options[:-1]), kept[-1]]
    costs, traced = NodeCosts(plan.mesh.device, fused, plan.mesh), traced_for(plan.mesh.device)
    made: dict[int, RematPoint] = {}
    found = []
    for graph in sharded_segments(program, plan):
        if id(graph) not in made:
            made[id(graph)] = selective_way(traced(graph), costs)
        found.append(made[id(graph)])
    return found


def least_kept(ways: Sequence[RematPoint]) -> RematPoint:
    """A segment's point under `full`: the fewest bytes, in one chunk."""
    return min(_whole(ways), key=lambda one: (one.resident_bytes, one.seconds))


def _whole(ways: Sequence[RematPoint]) -> list[RematPoint]:
    return [kept for kept in ways if kept.chunks == 1]


def selective_way(joint: Joint, costs: NodeCosts) -> RematPoint:
    """Products, convolutions and attention are kept, the rest is recomputed."""

    def is_kept(target: str) -> bool:
        return target.startswith(KEPT_WHERE_SELECTIVE)

    read = [n for n in read_by_backward(joint) if n.op == "call_function" and not is_kept(str(producer(n).target))]
    again = tuple(joint.names[node] for node in read)
    keep = tuple(name for node, name in joint.names.items() if is_kept(str(producer(node).target)))
    return cut_way(joint, costs, again, keep)


def order_by(chained: Chained, method: str, room_bytes: int) -> Nested | None:
    """The order of one of `ORDERED`; None where none fits. Chen's has one size and is returned even if it does not."""
    if method == "nested":
        return nested_order(chained, room_bytes)
    kept = all_kept(chained.ways)
    if method == "rotor":
        return nested_order(replace(chained, ways=[[one] for one in kept]), room_bytes)
    steps = tuple((move.kind, move.segment) for move in chen(len(kept)))
    twice = [index for kind, index in steps if kind == "pass" and index in chained.once]
    if twice:
        name = chained.program.segments[twice[0]].name
        raise PlanError(f"sqrt runs layer {name} twice", f"layers that may: {chained.once[twice[0]]}", "use rotor")
    return played(chained, steps, kept)


def chen(segments: int) -> list[Move]:
    """Chen's order: the square root of the segments between two checkpoints; the last group is kept at once."""
    width = max(1, isqrt(segments))
    starts = list(range(0, segments, width))
    moves = [Move("pass", k) for k in range(starts[-1])]
    for start in reversed(starts):
        group = range(start, min(start + width, segments))
        moves += [Move("forward", k) for k in group] + [Move("backward", k) for k in reversed(group)]
    return moves


def nested_order(chained: Chained, room_bytes: int) -> Nested | None:
    """The fastest order found within a budget; None where none fits. Rotor rounds up and counts some values twice, so
    the budget it is given is bisected.

    room_bytes: the budget without static bytes.
    """
    links = links_of(chained)
    low, high, best = 0, 2 * room_bytes, None
    for _ in range(RETRIES):
        told = (low + high) // 2
        order = rotor(links, told, 0)
        found = _played(chained, order) if order else None
        if found is not None and found.peak_bytes > room_bytes:
            high = told
            continue
        low = told
        if found is not None and (best is None or found.seconds < best.seconds):
            best = found
    return best


def _played(chained: Chained, order: Order) -> Nested:
    steps = tuple((move.kind, move.segment) for move in order.moves)
    savings = {move.segment: move.saving for move in order.moves if move.kind == "forward"}
    picked = tuple(chained.ways[index][savings[index]] for index in range(len(chained.ways)))
    return played(chained, steps, picked)


def links_of(chained: Chained) -> list[Link]:
    """The chain as Rotor takes it."""
    found = []
    for index, (segment, ways) in enumerate(zip(chained.program.segments, chained.ways, strict=True)):
        output = chained.bytes_of(segment.outputs)
        inputs = chained.bytes_of(list(dict.fromkeys(segment.inputs)))
        forward_s = min(kept.forward_s for kept in ways)
        savings = tuple(_saving(chained, index, kept, forward_s, output) for kept in ways)
        passed = chained.passes[index]
        running = passed.resident_bytes + passed.forward_transient_bytes - inputs - output
        weights = chained.gradients[index]
        once = index in chained.once
        found.append(Link(forward_s, output, savings, max(0, running), weight_bytes=weights, once=once))
    return found


def _saving(chained: Chained, index: int, kept: RematPoint, forward_s: float, output: int) -> Saving:
    own = chained.own_bytes(index, kept)
    return Saving(
        kept.seconds - forward_s,
        own + output,
        max(0, kept.forward_transient_bytes - output),
        max(0, kept.backward_transient_bytes - output),
    )
