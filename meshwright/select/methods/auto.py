"""meshwright's own method: reduce, then solve what is left exactly or by bound and search."""

from __future__ import annotations

import numpy as np

from meshwright.select import core, elimination
from meshwright.select.budget import Budget
from meshwright.select.flatten import flatten
from meshwright.select.problem import Problem, no_choice
from meshwright.select.reductions import reduce, twins

# Up to this size one elimination costs less than looking for reductions.
QUICK_NODES = 2000
QUICK_ENTRIES = 20_000_000


def search(problem: Problem, budget: Budget, seed: int) -> tuple[list[int], float, list[str]]:
    done: list[str] = []
    if problem.nodes > QUICK_NODES:
        return *_reduced(problem, budget, seed, done), done
    found = _quick(problem, budget, done)
    if found is not None:
        return *found, done
    apart, merged = twins.apply(problem)
    choice, bound = _reduced(apart, budget, seed, done)
    return merged.invert(choice), bound, done


def _reduced(problem: Problem, budget: Budget, seed: int, done: list[str]) -> tuple[list[int], float]:
    graph = reduce(problem)
    small, ids = flatten(graph)
    done.append(
        f"reduced {problem.nodes} nodes, {problem.edges} edges, {len(problem.limits)} rows "
        f"to {small.nodes}, {small.edges}, {len(small.limits)}"
    )
    choice, bound = core.solve(small, budget, graph.constant, seed, done)
    return graph.restore(dict(zip(ids, choice, strict=True))), bound + graph.constant


def _quick(problem: Problem, budget: Budget, done: list[str]) -> tuple[list[int], float] | None:
    """The optimum, when elimination as the problem stands is cheap and no row binds."""
    try:
        order = elimination.plan(problem, most=QUICK_ENTRIES)
    except elimination.TooWideError:
        return None
    filled = order.run(problem.costs)
    if np.isinf(filled.value):
        raise no_choice("elimination")
    choice = filled.choice()
    budget.charge(order.entries + 2000 * problem.nodes)
    done.append(f"elimination of {problem.nodes} nodes, {order.entries} table entries")
    if not problem.feasible(choice):
        return None
    budget.report("elimination", cost=filled.value, bound=filled.value)
    return choice, filled.value
