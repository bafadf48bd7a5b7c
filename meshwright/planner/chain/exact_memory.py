"""Feasibility of a small program: the Problem of `exact` with bytes as costs.

The minimum of each memory row is found once per ShardingModel. A budget below the largest of them is infeasible; within
most others one of these choices fits, and no search is needed.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from meshwright.planner.chain.chains import Chain
from meshwright.planner.chain.exact import WORK, ChainProblem, Charge, limited, retry_smaller_budget, uncharged
from meshwright.planner.effort import FEW, RESOLUTION
from meshwright.planner.sharding.model import ShardingModel
from meshwright.select import InfeasibleError, Selection, solve
from meshwright.select.problem import Problem


@dataclass(frozen=True, slots=True)
class MinMemoryChoice:
    """Choices that minimise memory.

    problem: its costs are the bytes of all rows together.
    least_bytes: a lower bound on the peak of every chain.
    found: minima of all rows together, and of the row of each distinct segment; none where there are too many options.
    searched: what was searched for under each budget, which does not depend on the overlap weight.
    """

    whole: ChainProblem
    problem: Problem
    least_bytes: float
    found: tuple[Selection, ...]
    searched: dict[int, tuple[Chain | None, bool]] = field(default_factory=dict)

    @classmethod
    def of(cls, shardings: ShardingModel) -> MinMemoryChoice:
        """Remembered for all overlap weights and budgets."""
        made: MinMemoryChoice | None = shardings.chains.get(MinMemoryChoice)
        if made is None:
            whole = ChainProblem.of(shardings)
            problem = whole.problem()
            graphs = {segment.graph: index for index, segment in enumerate(shardings.program.segments)}
            together = _counting(problem, 0, len(problem.limits))
            asked = [together, *(_counting(problem, row, row + 1) for row in graphs.values())]
            if len(problem.costs) > FEW * RESOLUTION:
                asked = []  # each would take a minute
            found = tuple(solve(one, work=WORK) for one in asked)
            least = max((one.bound for one in found[1:]), default=0.0)
            made = shardings.chains[MinMemoryChoice] = cls(whole, together, least, found)
        return made

    def chain(self, budget_bytes: int, price: float, charge: Charge = uncharged) -> tuple[Chain | None, bool]:
        """(a chain that fits, None where none was found; whether it is proven that there is none)."""
        if not self.found or self.least_bytes > budget_bytes:
            return None, bool(self.found)
        chains = (self.whole.chain(one.choice, price) for one in self.found)
        some = next((chain for chain in chains if chain.peak_bytes <= budget_bytes), None)
        if some is not None:
            return some, False
        if budget_bytes not in self.searched:
            self.searched[budget_bytes] = self._search(budget_bytes, price, charge)
        chain, none = self.searched[budget_bytes]
        return (replace(chain, price=price) if chain else None), none

    def _search(self, budget_bytes: int, price: float, charge: Charge) -> tuple[Chain | None, bool]:
        """`chain` by the engine, where none of the minima fits."""
        refused = []

        def within(smaller_bytes: int) -> Chain | None:
            charge(len(self.problem.costs))
            try:
                found = solve(limited(self.problem, smaller_bytes), work=WORK, gap=1.0)
            except InfeasibleError:
                refused.append(smaller_bytes)
                return None
            return self.whole.chain(found.choice, price) if found.feasible else None

        return retry_smaller_budget(within, budget_bytes), budget_bytes in refused


def _counting(problem: Problem, begin: int, end: int) -> Problem:
    """The Problem with the bytes of these rows as costs."""
    moments = np.clip(problem.use_end, begin, end) - np.clip(problem.use_begin, begin, end)
    costs, edge_costs = (np.where(np.isfinite(one), 0.0, np.inf) for one in (problem.costs, problem.edge_costs))
    np.add.at(costs, problem.use_option, problem.use_bytes * moments)
    return replace(problem, costs=costs, edge_costs=edge_costs)
