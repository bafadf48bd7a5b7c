"""Values that cross more than one boundary between segments."""

from __future__ import annotations

from meshwright.capture.program import Program


def far_values(program: Program) -> set[str]:
    """Values that are alive while a segment runs that does not read them."""
    made = {name: index for index, segment in enumerate(program.segments) for name in segment.outputs}
    readers: dict[str, list[int]] = {}
    for index, segment in enumerate(program.segments):
        for name in segment.inputs:
            readers.setdefault(name, []).append(index)
    return {name for name, found in readers.items() if found[-1] > made[name] + 1}


def most_alive(program: Program) -> int:
    """How many values cross a boundary at most."""
    made = {name: index for index, segment in enumerate(program.segments) for name in segment.outputs}
    last = {name: index for index, segment in enumerate(program.segments) for name in segment.inputs}
    spans = [(made[name], index) for name, index in last.items()]
    return max((sum(a <= k < b for a, b in spans) for k in range(len(program.segments))), default=0)
