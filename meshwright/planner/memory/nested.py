"""Nested orders for a plan on one device: Rotor over the chain, each segment saving in any of the ways of its curve.

Where even the segments' inputs take too much memory, segments run forward more than once (`schedule.nested`). Rotor's
dynamic programme finds the order; its memory is then played step by step, with the peaks of the traced pairs, and the
fastest order that fits is taken.
"""

from __future__ import annotations

from meshwright.planner.effort import RETRIES
from meshwright.planner.memory.rotor import Link, Order, Saving, rotor
from meshwright.remat.chained import Chained, Nested, played
from meshwright.remat.curve import RematPoint


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
