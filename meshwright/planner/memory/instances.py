"""Rematerialisation of a chain with a fixed sharding: an option for every instance, the fastest within the true peak.

With R_i the resident bytes of instances 0..i, the moments of a step are

    forward of i:   static + R_i + forward transient of i
    backward of i:  static + R_i + backward transient of i + gradients of the parameters of instances after i

The transient of an instance is therefore the larger of its two, later gradients included, and `label_dp` finds the
optimum. Instances that are alike share their options, and may still choose differently.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isqrt
from typing import Protocol

import numpy as np

from meshwright.planner.chain.label_dp import LagrangianBound, Ways, label_dp
from meshwright.planner.effort import RESOLUTION
from meshwright.predict.fast import Running, peak_beside


class Option(Running, Protocol):
    """One way to run an instance; `RematPoint` is one."""

    @property
    def seconds(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Instance:
    """gradient_bytes: of the parameters whose gradients this backward makes; they stay until the step."""

    options: Sequence[Option]
    gradient_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Chosen:
    """The option of each instance. bound_s: no choice within the budget is faster."""

    options: tuple[int, ...]
    seconds: float
    peak_bytes: int
    bound_s: float


def solve_instances(instances: Sequence[Instance], budget_bytes: int, static_bytes: int = 0) -> Chosen | None:
    """The fastest choice whose peak is within the budget; None where there is none."""
    if not instances:
        return Chosen((), 0.0, static_bytes, 0.0)
    chain = [[ways] for ways in _ways(instances)]
    bound = LagrangianBound(chain, budget_bytes - static_bytes)
    best, incumbent_s = None, inf
    for beam in (isqrt(RESOLUTION), None):  # a narrower walk gives a wider one its incumbent
        best = label_dp(chain, bound, incumbent_s, beam) or best
        if best is None:
            return None
        incumbent_s = best.seconds
    assert best is not None
    options = tuple(way for _, way in best.picks)
    return Chosen(options, best.seconds, peak_of(instances, options, static_bytes), min(bound.seconds, best.seconds))


def _ways(instances: Sequence[Instance]) -> list[Ways]:
    """Of each instance, as `label_dp` takes them; nothing is static."""
    found: list[Ways] = []
    known: dict[tuple[int, int], Ways] = {}
    later = 0
    for instance in reversed(instances):
        key = (id(instance.options), later)
        if key not in known:
            rows = [
                (option.resident_bytes, max(option.forward_transient_bytes, option.backward_transient_bytes + later))
                for option in instance.options
            ]
            resident, transient = np.array(rows, dtype=np.int64).T
            seconds = np.array([option.seconds for option in instance.options], dtype=np.float64)
            known[key] = Ways(seconds, np.zeros_like(resident), resident, transient)
        found.append(known[key])
        later += instance.gradient_bytes
    return found[::-1]


def peak_of(instances: Sequence[Instance], options: Sequence[int], static_bytes: int = 0) -> int:
    """The most bytes in use at any moment."""
    runs = [instance.options[option] for instance, option in zip(instances, options, strict=True)]
    return static_bytes + peak_beside(runs, [instance.gradient_bytes for instance in instances])


def least_peak_bytes(instances: Sequence[Instance], static_bytes: int = 0) -> int:
    """The smallest budget for which there is a choice."""
    peak = 0
    for ways in reversed(_ways(instances)):
        peak = int((ways.resident_bytes + np.maximum(ways.transient_bytes, peak)).min())
    return static_bytes + peak
