"""Activation offloading: saved values that are on the host between forward and backward.

The copy to the host overlaps the next segment's forward, the copy back its backward. With c the seconds of one copy, a
step is longer by max(0, c - next forward) + max(0, c - next backward), and by the memory bandwidth that copies take
from compute. One segment's values are in transit at a time, so the bytes of the largest are set aside for the step.
For every way two options are made: the largest values that are copied while the next segment runs, and the segment's
input alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from meshwright.cost.host_link import Copies
from meshwright.cost.traced.storage import storage_bytes
from meshwright.generate.joint import Joint, label
from meshwright.remat.curve import RematPoint, in_memory_anyway

SMALLEST, PART = 1 << 12, 64
"""Bytes below which a value is not worth a copy, and the part of the largest that it has to be: a small one takes the
host as long."""


def away_options(
    joint: Joint, ways: Sequence[RematPoint], following: Sequence[RematPoint], copies: Copies, stays: Collection[str]
) -> Iterator[RematPoint]:
    """following: the ways of the next segment.
    stays: values that another segment keeps too.
    """
    forward_s = min(kept.forward_s for kept in following)
    backward_s = min(kept.backward_s for kept in following)
    sizes = {name: storage_bytes(node) for node, name in joint.names.items()}
    never = in_memory_anyway(joint) | set(stays)
    given = {label(value.name) for value in joint.graph.inputs}
    offered: set[tuple[RematPoint, tuple[str, ...]]] = set()
    for kept in ways:
        if kept.chunks > 1:
            continue
        least = max(SMALLEST, max((sizes[name] for name in kept.saved), default=0) // PART)
        names = [name for name in kept.saved if name not in never and sizes[name] >= least]
        names.sort(key=lambda name: -sizes[name])
        window = int(copies.rate * min(forward_s, backward_s))
        for chosen in (_fill(names, sizes, window), _fill(names, sizes, window // 2), [n for n in names if n in given]):
            found = tuple(name for name in kept.saved if name in chosen)
            if found and (kept, found) not in offered:
                offered.add((kept, found))
                moved = sum(sizes[name] for name in found)
                yield _away(kept, found, moved, copies, forward_s, backward_s)


def _fill(names: Sequence[str], sizes: dict[str, int], room: int) -> list[str]:
    found = []
    for name in names:
        if sizes[name] <= room:
            found.append(name)
            room -= sizes[name]
    return found


def _away(
    kept: RematPoint, names: tuple[str, ...], moved: int, copies: Copies, forward_s: float, backward_s: float
) -> RematPoint:
    copy_s, slowed_s = moved / copies.rate, moved / copies.memory_rate
    return replace(
        kept.with_transient(moved),
        offload=names,
        offloaded_bytes=moved,
        resident_bytes=kept.resident_bytes - moved,
        forward_s=kept.forward_s + slowed_s + max(0.0, copy_s - forward_s),
        backward_s=kept.backward_s + slowed_s + max(0.0, copy_s - backward_s),
        forward_host_s=kept.forward_host_s + len(names) * copies.call_s,
        backward_host_s=kept.backward_host_s + len(names) * copies.call_s,
    )
