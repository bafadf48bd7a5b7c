"""meshwright's own method: reduce, then solve what is left exactly or by bound and search."""

from __future__ import annotations

import numpy as np

from meshwright.select import core, elimination
from meshwright.select.budget import Budget
from meshwright.select.flatten import flatten
from meshwright.select.problem import Problem, no_choice
from meshwright.select.reductions import parts, reduce, twins

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
    graph = reduce(problem, budget.over)
    small, ids = flatten(graph)
    done.append(
        f"reduced {problem.nodes} nodes, {problem.edges} edges, {len(problem.limits)} rows "
        f"to {small.nodes}, {small.edges}, {len(small.limits)}"
    )
    choice, bound = _parts(small, budget, graph.constant, seed, done)
    return graph.restore(dict(zip(ids, choice, strict=True))), bound + graph.constant


def _parts(problem: Problem, budget: Budget, constant: float, seed: int, done: list[str]) -> tuple[list[int], float]:
    """Each independent part on its own, the small ones first: the time they leave is for the large ones."""
    found, way = ([problem], None) if budget.over() else parts.apply(problem)
    if way is None or len(found) == 1:
        return core.solve(problem, budget, constant, seed, done)
    done.append(f"{len(found)} independent parts")
    left = sum(len(part.costs) for part in found)
    choices, bound = [], 0.0
    for part in found:
        share = budget.share(len(part.costs) / left)
        choice, least = core.solve(part, share, 0.0, seed, done)
        left -= len(part.costs)
        budget.spent += share.spent
        choices.append(choice)
        bound += least
    together = way.invert(choices)
    if problem.feasible(together):
        budget.report("parts", cost=problem.total_cost(together) + constant, bound=bound + constant)
    return together, bound


def _quick(problem: Problem, budget: Budget, done: list[str]) -> tuple[list[int], float] | None:
    """The optimum, when elimination as the problem stands is cheap and no row binds."""
    try:
        order = elimination.plan(problem, most=QUICK_ENTRIES)
    except elimination.TooWideError:
        return None
    filled = order.run(problem.costs)
    if np.isinf(filled.value):
        raise no_choice("elimination", problem)
    choice = filled.choice()
    budget.charge(order.entries + 2000 * problem.nodes)
    done.append(f"elimination of {problem.nodes} nodes, {order.entries} table entries")
    if not problem.feasible(choice):
        return None
    budget.report("elimination", cost=filled.value, bound=filled.value)
    return choice, filled.value
