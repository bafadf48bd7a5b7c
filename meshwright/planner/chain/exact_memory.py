"""Whether any chain of a small program fits: the Problem of `exact` with bytes in the place of seconds.

The fewest bytes of a moment, whatever the others take, are found once per ShardingModel by elimination. A budget
below them is refused at once; in most others one of these few choices fits, and no search is needed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from meshwright.planner.chain.chains import Chain
from meshwright.planner.chain.exact import WORK, Whole, limited, with_less_room
from meshwright.planner.sharding.model import ShardingModel
from meshwright.select import InfeasibleError, Selection, solve
from meshwright.select.problem import Floats, Problem


@dataclass(frozen=True, slots=True)
class Leanest:
    """problem: its costs are bytes, of all moments together. least_bytes: that no chain has a smaller peak than.
    found: the choice with the fewest bytes together, and of each distinct segment at its moment."""

    whole: Whole
    problem: Problem
    least_bytes: float
    found: tuple[Selection, ...]

    @classmethod
    def of(cls, shardings: ShardingModel) -> Leanest:
        """Once for all weights of what overlaps compute and all budgets."""
        made: Leanest | None = shardings.chains.get(Leanest)
        if made is None:
            whole = Whole.of(shardings)
            problem = whole.problem()
            graphs = {segment.graph: index for index, segment in enumerate(shardings.program.segments)}
            each = [solve(_counting(problem, row, row + 1), work=WORK) for row in graphs.values()]
            least = max(one.bound for one in each)
            together = _counting(problem, 0, len(problem.limits))
            made = cls(whole, together, least, (solve(together, work=WORK), *each))
            shardings.chains[Leanest] = made
        return made

    def chain(self, budget_bytes: int, price: float) -> tuple[Chain | None, bool]:
        """(one that fits, None where none was found; whether it is proven that there is none). price: for the Chain."""
        if self.least_bytes > budget_bytes:
            return None, True
        chains = (self.whole.chain(one.choice, price) for one in self.found)
        some = next((chain for chain in chains if chain.peak_bytes <= budget_bytes), None)
        if some is not None:
            return some, False
        refused = []

        def within(room_bytes: int) -> Chain | None:
            try:
                found = solve(limited(self.problem, room_bytes), work=WORK, gap=1.0)
            except InfeasibleError:
                refused.append(room_bytes)
                return None
            return self.whole.chain(found.choice, price) if found.feasible else None

        return with_less_room(within, budget_bytes), budget_bytes in refused


def _counting(problem: Problem, begin: int, end: int) -> Problem:
    """With bytes of these moments as costs."""
    moments = np.clip(problem.use_end, begin, end) - np.clip(problem.use_begin, begin, end)
    costs = np.where(np.isfinite(problem.costs), 0.0, np.inf)
    np.add.at(costs, problem.use_option, problem.use_bytes * moments)
    return replace(problem, costs=costs, edge_costs=_allowed(problem.edge_costs))


def _allowed(costs: Floats) -> Floats:
    return np.where(np.isfinite(costs), 0.0, np.inf)
