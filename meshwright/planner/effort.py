"""How much work a search may do. All of it is counted in nodes and shardings, never in seconds: the same request
has the same answer on a busy machine."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from meshwright.errors import PlanError

SIMPLER_WITHIN = 5e-3
"""Of steps that are this near the simplest plan is taken, unless asked otherwise."""

HEADROOM = 0.03
"""Part of a device that is left free where no memory limit is given: a GPU's allocator was measured to lose up to 2 %
and 400 MiB of a full device to fragmentation, and libraries take workspaces of their own."""


CLOSE = 5e-4
"""The part to which a bound is bracketed; steps closer than this are equal."""

NEAR = 5e-3
"""Where a search is not worth its time to the end: a part of a step, or of the bytes that a refusal names."""

FEW = 8
"""Segments of which the least bytes are found exactly: of more to a part NEAR, since every question takes long. Devices
on which stages of every size are looked at, and three axes may split something else than samples where there is one
sample. Micro-batches for each stage after which a schedule is taken to be periodic."""

ROUGH = 1.25
"""Bytes and seconds that are not read off traced pairs may be so many times what they seem: so near to a budget or to
the incumbent they say nothing."""

RESOLUTION = 1024
"""Parts of a budget to which labels are rounded up; how many labels a walk follows that has to find something good, not
the best; segments of shardings that may be examined for one refusal; and options of a chain that is solved exactly."""

MOST_UNITS = 64
"""Stages, and segments of a nested order, beyond which a search takes too long: on more devices the smallest stage is
such a part of the cluster."""

OVERLAP_WEIGHTS = (0.0, 0.25, 1.0, 4.0)
"""Weights of what overlaps compute. A step is a maximum, not a sum: each bounds it, each may find the best."""

PRICES = (1.0, 10.0, 1000.0)
"""Per byte, in steps over the memory there is: what a byte is worth where memory binds is of that size."""

RETRIES = 8
"""Prices per byte that are asked for to bracket one bound; and how often something is looked for again with less
memory, where what was found takes more than the search counted."""

ANY_BYTES = 1 << 60
"""More than any device has."""


@dataclass(frozen=True, slots=True)
class Effort:
    """Limits of the joint search of sharding and rematerialisation. A node is a mesh in a number of micro-batches.

    probed: nodes of which one sharding is traced, once something fits.
    refined: of these, nodes that are searched with mixtures of shardings.
    slower: times the incumbent, above which a node's first sharding is not traced.
    shardings: traced for a node that is refined.
    enumerated: partial choices of every sharding of a tiny program, once the search is over; none where it has more.
    near: a bound that is nearer to the incumbent than this part is not pursued: tracing takes longer than it saves.
    """

    probed: int
    refined: int
    slower: float
    shardings: int
    near: float = NEAR
    enumerated: int = 0


EFFORTS = {
    "fast": Effort(probed=3, refined=1, slower=1.0, shardings=4),
    "default": Effort(probed=10, refined=3, slower=1.03, shardings=4),
    "proof": Effort(probed=30, refined=6, slower=1.5, shardings=12, near=0.0, enumerated=20_000),
}


def effort_of(name: str) -> Effort:
    if name not in EFFORTS:
        raise PlanError(f"effort {name!r}", " or ".join(EFFORTS), "name one of these")
    return EFFORTS[name]


def check_part(name: str, given: float) -> None:
    if not isinstance(given, int | float) or not 0 <= given < 1:
        raise PlanError(f"{name} {given}", "a part, from 0 to less than 1", "give one such as 0.01, or 0 for none")


def headroom_of(memory: object, headroom: float | None, usable_bytes: float = inf) -> float:
    """The part that is left free: none of a limit that is given, unless it is above `usable_bytes`, which no device
    has."""
    if headroom is None:
        limits = memory is not None and not (isinstance(memory, int) and memory > usable_bytes)
        return 0.0 if limits else HEADROOM
    check_part("headroom", headroom)
    if memory is not None:
        todo = "drop headroom: a memory limit is taken at its word"
        raise PlanError(f"memory {memory} and headroom {headroom}", "one of them", todo)
    return float(headroom)
