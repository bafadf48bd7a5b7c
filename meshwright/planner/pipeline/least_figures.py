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

import numpy as np

from meshwright.capture.program import Value
from meshwright.planner.sharding.model import ShardingModel
from meshwright.planner.sharding.segment import SegmentProblem
from meshwright.planner.space.long_lived import has_many_alive
from meshwright.planner.space.segment import Space
from meshwright.planner.stages.options import Floats
from meshwright.select.tables import TablesPlan

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
        return self._of_each(lambda one: _priced(one, prices, flights))

    def _of_each(self, figures: Callable[[_Segment], Floats]) -> Floats:
        model, segments = self.model, self.model.program.segments
        tables = self.conversions and not has_many_alive(model.program)
        known: dict[object, Floats] = {}
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

    @property
    def plan(self) -> TablesPlan | None:
        return self.problem.closed if self.problem else None

    def costs(self, ops: list[Floats], prices: Floats) -> Floats:
        """Of each option of the Problem, by row. Weights cost their gathers and reductions, as far as no compute hides
        them, and their bytes at the price.

        ops: of each op, the cost of each strategy by row.
        """
        problem = self.problem
        assert problem is not None
        offsets = problem.problem.offsets
        found: Floats = problem.problem.costs - problem.overlapped_s - problem.after_s + prices[:, None] * problem.held
        for node, own in zip(problem.op_nodes, ops, strict=True):
            found[:, offsets[node] : offsets[node + 1]] = own
        return found


def seconds_per_byte(model: ShardingModel) -> float:
    """Seconds of a micro-batch over the bytes of its saved tensors."""
    work_s = sum(sum(float(costs.min()) for costs in model.space(one).op_costs) for one in model.program.segments)
    return work_s / max(1.0, model.least_kept())


def _figures(segment: _Segment) -> Floats:
    here, problem, work = segment.space, segment.problem, segment.work_s
    micro = here.setting.microbatches
    cross = [costs - micro * halves for costs, halves in zip(work, here.op_weight_s, strict=True)]
    update_s = sum(_least_update_s(problem, value.name) for value in segment.weights) if problem else 0.0
    if problem is None or segment.plan is None:
        work_s, cross_s = (sum(float(costs.min()) for costs in ops) for ops in (work, cross))
        step_s = work_s
    else:
        rows = work, cross, work
        costs = segment.costs([np.stack(one) for one in zip(*rows, strict=True)], np.zeros(len(rows)))
        offsets = problem.problem.offsets
        for name in problem.options:
            node = problem.makers[name].node
            costs[:2, offsets[node] : offsets[node + 1]] = 0.0
        work_s, cross_s, step_s = segment.plan.least_of_each(costs).tolist()
    work_s, cross_s = work_s / micro, max(0.0, cross_s / micro)
    host_s = sum(here.op_host_s)
    return np.array([work_s, min(work_s, cross_s), host_s, segment.static_bytes, step_s + update_s, update_s])


def _least_update_s(problem: SegmentProblem, name: str) -> float:
    node = problem.makers[name].node
    return float(problem.after_s[problem.problem.offsets[node] : problem.problem.offsets[node + 1]].min())


def _priced(segment: _Segment, prices: Floats, flights: Floats) -> Floats:
    """W by price and number in flight."""
    every, held = np.repeat(prices, len(flights)), np.outer(prices, flights).ravel()
    ops = _charged(segment, held)
    if segment.plan is None:
        found: Floats = sum(costs.min(axis=1) for costs in ops) + every * segment.static_bytes
    else:
        found = segment.plan.least_of_each(segment.costs(ops, every))
    return found.reshape(len(prices), len(flights))


def _charged(segment: _Segment, held: Floats) -> list[Floats]:
    """The cost of each op, by row and strategy. held: of each row, seconds per byte that every micro-batch saves."""
    micro, found = segment.space.setting.microbatches, []
    for own, parts in zip(segment.work_s, segment.space.op_kept, strict=True):
        costs = np.tile(own, (len(held), 1))
        for part in parts:
            costs += part.charge_s(held[:, None], micro)
        found.append(costs)
    return found
