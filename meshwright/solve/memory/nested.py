"""Nested orders for a plan on one device: Rotor over the chain, each segment saving in any of the ways of its curve.

Where even the segments' inputs are too much to keep, segments run forward more than once (`schedule.nested`). Rotor's
programme finds the order; what it holds is then played step by step, with the peaks of the traced pairs, and the first
that fits is taken, from more room for Rotor to less. Nothing runs twice that must not.
"""

from __future__ import annotations

from meshwright.remat.chained import Chained, Nested, played
from meshwright.remat.curve import Kept
from meshwright.solve.memory.rotor import Link, Saving, rotor

SHARES = (1.5, 1.3, 1.2, 1.1, 1.05, 1.0, 0.95, 0.9, 0.8, 0.7, 0.5)
"""What Rotor is told of the room, one after the other: it rounds up, and counts some values twice."""


def nested_order(chained: Chained, room_bytes: int) -> Nested | None:
    """The fastest found that takes no more than `room_bytes` besides what is always there; None where none does."""
    links = links_of(chained)
    for share in SHARES:
        order = rotor(links, int(share * room_bytes), 0)
        if order is None:
            return None
        steps = tuple((move.kind, move.segment) for move in order.moves)
        savings = {move.segment: move.saving for move in order.moves if move.kind == "forward"}
        picked = tuple(chained.ways[index][savings[index]] for index in range(len(links)))
        found = played(chained, steps, picked)
        if found.peak_bytes <= room_bytes:
            return found
    return None


def links_of(chained: Chained) -> list[Link]:
    """As Rotor takes them."""
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


def _saving(chained: Chained, index: int, kept: Kept, forward_s: float, output: int) -> Saving:
    own = chained.own_bytes(index, kept)
    return Saving(
        kept.seconds - forward_s,
        own + output,
        max(0, kept.forward_transient_bytes - output),
        max(0, kept.backward_transient_bytes - output),
    )
