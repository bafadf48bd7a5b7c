"""Stages on the same ranks are one physical stage; which they are is worked out once for a plan and its likes."""

from __future__ import annotations

from typing import NamedTuple

from meshwright.caches import CACHES
from meshwright.plan.records import Stage


class Groups(NamedTuple):
    """stages: those that were grouped. numbers: by rank, of its group."""

    stages: tuple[Stage, ...]
    groups: tuple[tuple[Stage, ...], ...]
    numbers: dict[int, int]


_known: dict[int, Groups] = CACHES.own({})
"""By the tuple of stages, which each holds: plans made of one another share it."""

MOST_KNOWN = 64


def grouped(stages: tuple[Stage, ...]) -> Groups:
    if id(stages) not in _known:
        found: dict[frozenset[int], list[Stage]] = {}
        for stage in stages:
            found.setdefault(frozenset(stage.mesh.ranks), []).append(stage)
        groups = tuple(map(tuple, found.values()))
        numbers: dict[int, int] = {}
        for number, group in enumerate(groups):
            for rank in group[0].mesh.ranks:
                numbers.setdefault(rank, number)
        if len(_known) >= MOST_KNOWN:
            _known.clear()
        _known[id(stages)] = Groups(stages, groups, numbers)
    return _known[id(stages)]
