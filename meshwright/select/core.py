"""Solves what the reductions left: exact elimination where it is narrow, otherwise HiGHS (and, for large cores,
bound and search).
"""

from __future__ import annotations

import numpy as np

from meshwright.select import elimination
from meshwright.select.budget import Budget
from meshwright.select.ilp import branch_and_bound
from meshwright.select.problem import Problem

# Table entries elimination may take; at some 100 million a second this is a fraction of a second.
NARROW = 20_000_000


def solve(problem: Problem, budget: Budget, constant: float, seed: int, done: list[str]) -> tuple[list[int], float]:
    """A choice and a lower bound for `problem`, both without `constant`, which only progress reports add."""
    if not problem.nodes:
        budget.report("reductions", cost=constant, bound=constant)
        return [], 0.0
    choice, bound = [0] * problem.nodes, -np.inf
    order = elimination.plan(problem)
    if order.entries <= NARROW:
        bound, choice = elimination.run(problem, order, problem.costs)
        done.append(f"elimination of {problem.nodes} nodes, {order.entries} table entries")
        budget.report("elimination", bound=bound + constant)
        if problem.feasible(choice):
            budget.report("elimination", cost=bound + constant)
            return choice, bound
    found = [choice]

    def report(lower: float | None, better: list[int] | None) -> None:
        nonlocal bound
        bound = bound if lower is None else max(bound, lower)
        cost = None
        if better is not None:
            found[0], cost = better, problem.total_cost(better) + constant
        budget.report("ilp", cost=cost, bound=bound + constant)

    exact = branch_and_bound(problem, report, seconds=max(0.0, budget.left()), gap=budget.gap)
    done.append("HiGHS, solved" if exact else "HiGHS, stopped at the limit")
    return found[0], bound
