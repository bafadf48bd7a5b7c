"""Long-lived values and shared weights, whose layouts more than two segments share."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate

from meshwright.capture.program import Program

MOST_ALIVE = 4
"""Values that cross a boundary, or weights that a segment shares. Where there are more, values that cross several
boundaries have one layout, and so do those weights (`ShardingModel.skips`)."""


def has_many_alive(program: Program) -> bool:
    """Whether too many values are alive at once for all combinations of their layouts."""
    return most_alive(program) > MOST_ALIVE or bool(shared_layers(program))


def shared_layers(program: Program) -> set[str]:
    """The weights of layers that run several times in a step (ALBERT), without tied tables, which are few."""
    users = Counter(name for segment in program.segments for name in segment.params)
    each = [[name for name in segment.params if users[name] > 1] for segment in program.segments]
    return {name for names in each if len(names) > MOST_ALIVE for name in names}


def long_lived_values(program: Program) -> set[str]:
    """Values that are alive during a segment that does not read them."""
    made = {name: index for index, segment in enumerate(program.segments) for name in segment.outputs}
    readers: dict[str, list[int]] = {}
    for index, segment in enumerate(program.segments):
        for name in segment.inputs:
            readers.setdefault(name, []).append(index)
    return {name for name, found in readers.items() if found[-1] > made[name] + 1}


def most_alive(program: Program) -> int:
    """The largest number of values that cross a boundary."""
    made = {name: index for index, segment in enumerate(program.segments) for name in segment.outputs}
    last = {name: index for index, segment in enumerate(program.segments) for name in segment.inputs}
    change = [0] * len(program.segments)
    for name, index in last.items():
        change[made[name]] += 1
        change[index] -= 1
    return max(accumulate(change), default=0)
