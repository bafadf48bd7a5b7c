"""The least seconds and bytes of each segment on a submesh, over all its shardings and rematerialisations.

A segment takes the sharding that is best for it alone, whatever its neighbours take. Memory is priced: a sharding with
s seconds of a step, p bytes of weights and states, and k bytes of saved tensors costs

    W(l, f) = min over shardings of s + l (p + f k)

at l seconds per byte with f micro-batches in flight. A saved tensor may be recomputed instead (`planner.space.saved`).
W is concave in f, so a chord between two numbers in flight is a lower bound.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import numpy as np

from meshwright.capture.program import Value
from meshwright.planner.sharding.model import ShardingModel
from meshwright.planner.sharding.segment import SegmentProblem
from meshwright.planner.space.long_lived import has_many_alive
from meshwright.planner.space.segment import Space
from meshwright.planner.stages.options import Floats

FIGURES = WORK, CROSS, HOST, STATIC, STEP, UPDATE = range(6)
"""Of a segment: seconds of a micro-batch; of these, what is not a weight half; seconds of the host that asks for a
micro-batch; bytes of parameters, gradients and states on each device; seconds of a step, with what no compute hides;
of these, the optimizer's update."""


@dataclass(frozen=True, slots=True)
class LeastFigures:
    """conversions: those inside a segment count, which takes longer; never where many values are alive at once."""

    model: ShardingModel
    conversions: bool = True

    def figures(self) -> Floats:
        """By segment and FIGURES."""
        return self._of_each(_figures)

    def priced(self, prices: Floats, flights: Floats) -> Floats:
        """W by segment, price and number in flight."""
        found = self._of_each(lambda one: _priced(one, prices, flights))
        return found.reshape(-1, len(prices), len(flights))

    def _of_each(self, figures: Callable[[_Segment], list[float]]) -> Floats:
        model, segments = self.model, self.model.program.segments
        tables = self.conversions and not has_many_alive(model.program)
        known: dict[object, list[float]] = {}
        counted: set[str] = set()
        found = []
        for index, segment in enumerate(segments):
            here = model.space(segment)
            new = tuple(name not in counted for name in segment.params)  # a weight counts where it is read first
            problem = model.problem(index) if tables else None
            key = (id(problem) if tables else segment.graph, new)
            if key not in known:
                values = [value for value, own in zip(here.graph.params, new, strict=True) if own]
                static = float(sum(least for least, own in zip(model.least_weights(segment), new, strict=True) if own))
                known[key] = figures(_Segment(here, problem, values, static))
            counted.update(segment.params)
            found.append(known[key])
        return np.array(found)


@dataclass(frozen=True, slots=True)
class _Segment:
    """problem: None where each op and weight is taken alone.
    weights: those that no segment before reads.
    static_bytes: of these, at least.
    """

    space: Space
    problem: SegmentProblem | None
    weights: list[Value]
    static_bytes: float

    @property
    def work_s(self) -> list[Floats]:
        """Seconds of a step, of each op and strategy."""
        return [self.space.setting.microbatches * costs for costs in self.space.op_costs]


def seconds_per_byte(model: ShardingModel) -> float:
    """Seconds of a micro-batch over the bytes of its saved tensors."""
    work_s = sum(sum(float(costs.min()) for costs in model.space(one).op_costs) for one in model.program.segments)
    return work_s / max(1.0, model.least_kept())


def _figures(segment: _Segment) -> list[float]:
    here, problem, work = segment.space, segment.problem, segment.work_s
    micro = here.setting.microbatches
    cross = [costs - micro * halves for costs, halves in zip(work, here.op_weight_s, strict=True)]
    update_s = sum(_least_update_s(problem, value.name) for value in segment.weights) if problem else 0.0
    work_s, cross_s = _least_s(segment, work) / micro, max(0.0, _least_s(segment, cross) / micro)
    step_s = _least_s(segment, work, weights=True) + update_s
    return [work_s, min(work_s, cross_s), sum(here.op_host_s), segment.static_bytes, step_s, update_s]


def _priced(segment: _Segment, prices: Floats, flights: Floats) -> list[float]:
    micro, kept = segment.space.setting.microbatches, segment.space.op_kept
    found = []
    for price, flight in product(prices, flights):
        charges = (sum(part.charge_s(price * flight, micro) for part in parts) for parts in kept)
        costs = [own + charge for own, charge in zip(segment.work_s, charges, strict=True)]
        found.append(_least_s(segment, costs, weights=True, price=price))
    return found


def _least_s(segment: _Segment, ops: list[Floats], weights: bool = False, price: float = 0.0) -> float:
    """The least cost of a sharding; without a Problem, of each op and weight alone.

    ops: of each op, the cost of each strategy.
    weights: count their gathers and reductions, as far as no compute hides them, and their bytes at the price.
    """
    problem = segment.problem
    if problem is None or problem.closed is None:
        return sum(float(costs.min()) for costs in ops) + price * segment.static_bytes
    offsets = problem.problem.offsets
    costs = problem.problem.costs - problem.overlapped_s - problem.after_s + price * problem.held
    if not weights:
        for name in problem.options:
            node = problem.makers[name].node
            costs[offsets[node] : offsets[node + 1]] = 0.0
    for node, own in zip(problem.op_nodes, ops, strict=True):
        costs[offsets[node] : offsets[node + 1]] = own
    return float(problem.closed.run(costs).costs)


def _least_update_s(problem: SegmentProblem, name: str) -> float:
    node = problem.makers[name].node
    return float(problem.after_s[problem.problem.offsets[node] : problem.problem.offsets[node + 1]].min())
