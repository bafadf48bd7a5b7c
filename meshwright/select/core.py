"""Solves what the reductions left:

1. `narrow`: elimination where the core is narrow; the end of it when no row binds;
2. HiGHS in this process when the integer program is tiny;
3. HiGHS in a child process on one core, bound and search (`large`) on the other, each told what the other found;
4. bound and search on both cores when the integer program is too large for HiGHS to get anywhere.

With a work limit nothing runs in parallel: HiGHS comes first, as far as its nodes go, then bound and search.
"""

from __future__ import annotations

import numpy as np

from meshwright.select import narrow
from meshwright.select.budget import Best, Budget
from meshwright.select.model import count_pairs
from meshwright.select.problem import Problem, no_choice

# Pair variables up to which HiGHS is used in this process, and in a process of its own.
SMALL = 3_000
MIDDLE = 400_000
# With a work limit HiGHS counts nodes of its tree instead of seconds, of larger programs fewer; up to so many pairs.
IN_TURN = 30_000
NODES_PER_UNIT = 1


def solve(problem: Problem, budget: Budget, constant: float, seed: int, done: list[str]) -> tuple[list[int], float]:
    """A choice and a lower bound for `problem`, both without `constant`, which only progress reports add."""
    if not problem.nodes:
        budget.report("reductions", cost=constant, bound=constant)
        return [], 0.0
    best = Best(problem, budget, constant, np.zeros(problem.nodes, dtype=np.int64))
    if not budget.over():
        narrow.solve(best, done)
    if not budget.over():
        pairs = count_pairs(problem, MIDDLE)
        if pairs <= SMALL:
            _branch(best, done)
        elif pairs <= MIDDLE and budget.work is None:
            _both_sides(best, seed, done)
        elif pairs <= IN_TURN and _branch(best, done, SMALL / pairs):
            return best.choice.tolist(), best.bound
        else:
            from meshwright.select import large  # numba takes a second to import: only where it is used

            large.solve(best, seed, done)
    return best.choice.tolist(), best.bound


def _branch(best: Best, done: list[str], part: float = 1.0) -> bool:
    """Whether it was solved. part: of the nodes that a work limit allows."""
    from meshwright.select.ilp import branch_and_bound

    budget = best.budget
    nodes = None if budget.work is None else max(1, int(part * budget.left() * NODES_PER_UNIT))
    solved = branch_and_bound(
        best.problem,
        best.note,
        seconds=max(0.0, budget.left()) if budget.work is None else 1e6,
        gap=budget.gap,
        offered=lambda: _known(best),
        max_nodes=nodes,
    )
    done.append("HiGHS, solved" if solved else "HiGHS, stopped at the limit")
    return solved


def _both_sides(best: Best, seed: int, done: list[str]) -> None:
    from meshwright.select import large
    from meshwright.select.child import INFEASIBLE, SOLVED, Child

    with Child(best.problem, gap=best.budget.gap) as child:
        told = np.inf

        def listen() -> bool:
            nonlocal told
            for bound, choice in child.news():
                best.note(bound, choice)
            if best.cost < told:
                told = best.cost
                child.offer(best.choice.tolist())
            if child.ended == INFEASIBLE:
                raise no_choice("HiGHS")
            return child.ended != SOLVED

        large.solve(best, seed, done, listen)
        done.append(f"HiGHS in parallel, {child.ended or 'stopped'}")


def _known(best: Best) -> list[int] | None:
    choice: list[int] = best.choice.tolist()
    return choice if np.isfinite(best.cost) else None
