"""HiGHS alone on the whole problem, as Alpa and AutoParallel hand it to CBC; lazy rows and compact edges, no
reductions.
"""

from __future__ import annotations

import numpy as np

from meshwright.select.budget import Budget
from meshwright.select.ilp import branch_and_bound
from meshwright.select.problem import Problem

# With a work limit the clock may not decide, so nodes of the search tree do.
NODES_PER_UNIT = 10


def search(problem: Problem, budget: Budget, seed: int) -> tuple[list[int], float, list[str]]:
    choice, bound = [0] * problem.nodes, -np.inf

    def report(lower: float | None, better: list[int] | None) -> None:
        nonlocal choice, bound
        bound = bound if lower is None else max(bound, lower)
        choice = choice if better is None else better
        budget.report("ilp", cost=None if better is None else problem.total_cost(better), bound=bound)

    nodes = None if budget.work is None else max(1, int(budget.work * NODES_PER_UNIT))
    seconds = max(0.0, budget.left()) if budget.work is None else 1e6
    exact = branch_and_bound(problem, report, seconds=seconds, gap=budget.gap, max_nodes=nodes)
    return choice, bound, ["HiGHS, solved" if exact else "HiGHS, stopped at the limit"]
