"""HiGHS alone on the whole problem, as Alpa and AutoParallel use CBC; lazy rows and compact edges, no reductions."""

from __future__ import annotations

import numpy as np

from meshwright.select.budget import Best, Budget
from meshwright.select.child import INFEASIBLE, Child
from meshwright.select.ilp import branch_and_bound
from meshwright.select.problem import Problem, no_choice

# With a work limit the clock may not decide, so nodes of the search tree do.
NODES_PER_UNIT = 10
# Pairs of options up to which HiGHS can be trusted to stop in time by itself.
SMALL = 20_000


def search(problem: Problem, budget: Budget, seed: int) -> tuple[list[int], float, list[str]]:
    best = Best(problem, budget, 0.0, np.zeros(problem.nodes, dtype=np.int64))
    if budget.work is None and len(problem.edge_costs) > SMALL:
        ended = _in_a_child(best)
    else:
        nodes = None if budget.work is None else max(1, int(budget.work * NODES_PER_UNIT))
        seconds = max(0.0, budget.left()) if budget.work is None else 1e6
        solved = branch_and_bound(problem, best.note, seconds=seconds, gap=budget.gap, max_nodes=nodes)
        ended = "solved" if solved else "stopped"
    return best.choice.tolist(), best.bound, [f"HiGHS, {ended}"]


def _in_a_child(best: Best) -> str:
    """In a process that can be killed; this one waits."""
    with Child(best.problem, gap=best.budget.gap) as child:
        while child.ended is None and not best.budget.over():
            for bound, choice in child.news(wait_s=min(0.5, max(0.01, best.budget.left()))):
                best.note(bound, choice)
        if child.ended == INFEASIBLE:
            raise no_choice("HiGHS", best.problem)
        return child.ended or "stopped"
