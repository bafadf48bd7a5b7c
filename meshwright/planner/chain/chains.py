"""A chain: what every segment of a program does on one mesh; and the fastest recombination of several chains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf

import numpy as np

from meshwright.plan import FrontierPoint
from meshwright.planner.chain.label_dp import LagrangianBound, State, Ways, label_dp
from meshwright.planner.effort import RESOLUTION
from meshwright.planner.sharding.model import Options, Point, ShardingModel
from meshwright.price.overlap import host_waits_s, overlapped, pending_grad_bytes


@dataclass(frozen=True)
class Chain:
    """points[i]: of segment i, between the boundary options[i].

    price: at which it was found, in seconds per byte.
    seconds: of a step, with communication that overlaps compute.
    peak_bytes: with gradients that wait for their reduction.
    """

    points: tuple[Point, ...]
    options: tuple[Options, ...]
    microbatches: int
    price: float = 0.0

    @cached_property
    def seconds(self) -> float:
        return overlapped(self._points, self.microbatches)

    @property
    def host_s(self) -> float:
        """Seconds of a step in which devices wait for their hosts' kernel launches."""
        return host_waits_s(self._points, self.microbatches)

    def weighed_s(self, overlap_weight: float | None) -> float:
        """Seconds with overlapping communication counted at this weight, as in a ShardingModel; None adds all up."""
        total_s = sum(point.seconds(self.microbatches) for point in self._points)
        overlapped_s = sum(point.async_comm_s for point in self._points)
        if overlap_weight is None or not overlapped_s:
            return total_s
        after_s = sum(point.step_s for point in self._points)
        return total_s + (overlap_weight - 1) * overlapped_s + overlap_weight * after_s

    @cached_property
    def _points(self) -> list[FrontierPoint]:
        return [point.point for point in self.points]

    @cached_property
    def static_bytes(self) -> int:
        return sum(point.point.static_bytes for point in self.points)

    @cached_property
    def held_bytes(self) -> int:
        return sum(point.point.held_bytes for point in self.points)

    @cached_property
    def transient_bytes(self) -> int:
        return max(point.point.transient_bytes for point in self.points)

    @cached_property
    def peak_bytes(self) -> int:
        return self.held_bytes + self.transient_bytes + pending_grad_bytes(self._points, self.microbatches)

    def fits(self, budget_bytes: int) -> bool:
        """Whether the peak is within the budget; the step is not played where it cannot be."""
        return self.held_bytes + self.transient_bytes <= budget_bytes and self.peak_bytes <= budget_bytes


def combine_chains(shardings: ShardingModel, chains: Sequence[Chain], budget_bytes: int) -> Chain | None:
    """The chain with the fewest seconds that fits and takes each segment's point from one of these; None where none has
    fewer than the best of them.

    chains: of one ShardingModel. Points hold their bytes during the whole step, as `Chain.peak_bytes` counts.
    """
    micro = shardings.setting.microbatches
    rows: list[list[Ways]] = []
    offers: list[list[tuple[Options, list[Point]]]] = []
    for index in range(len(shardings.program.segments)):
        found: dict[Options, dict[int, Point]] = {}
        for chain in chains:
            found.setdefault(chain.options[index], {})[id(chain.points[index])] = chain.points[index]
        offers.append([(options, list(points.values())) for options, points in found.items()])
        rows.append([_ways(points, boundary(shardings, index, options), micro) for options, points in offers[-1]])
    incumbent_s = min((chain.weighed_s(None) for chain in chains if chain.fits(budget_bytes)), default=inf)
    solution = label_dp(rows, LagrangianBound(rows, budget_bytes), incumbent_s, RESOLUTION, 2 * RESOLUTION)
    if solution is None:
        return None
    taken = [here[offer] for here, (offer, _) in zip(offers, solution.picks, strict=True)]
    picked = tuple(points[way] for (_, points), (_, way) in zip(taken, solution.picks, strict=True))
    return Chain(picked, tuple(options for options, _ in taken), micro, chains[-1].price)


def boundary(shardings: ShardingModel, index: int, options: Options) -> State:
    """The options of a segment's boundary by name."""
    return tuple(zip(shardings.boundary(index), options, strict=True))


def _ways(points: Sequence[Point], state: State, microbatches: int) -> Ways:
    rows = [point.point for point in points]
    held = np.array([row.held_bytes for row in rows])
    transient = np.array([row.transient_bytes for row in rows])
    seconds = np.array([row.seconds(microbatches) for row in rows])
    return Ways(seconds, held, np.zeros_like(held), transient, state)
