"""meshwright's own method: reduce, then solve what is left exactly or by bound and search."""

from __future__ import annotations

import numpy as np

from meshwright.select import core
from meshwright.select.budget import Budget
from meshwright.select.flatten import flatten
from meshwright.select.problem import Problem
from meshwright.select.reductions import reduce


def search(problem: Problem, budget: Budget, seed: int) -> tuple[list[int], float, list[str]]:
    graph = reduce(problem)
    small, ids = flatten(graph)
    done = [f"reduced {problem.nodes} nodes, {problem.edges} edges, {len(problem.limits)} rows "
            f"to {small.nodes}, {small.edges}, {len(small.limits)}"]  # fmt: skip
    choice, bound = core.solve(small, budget, graph.constant, seed, done)
    full = graph.restore(dict(zip(ids, choice, strict=True)))
    return full, (bound if np.isfinite(bound) else -np.inf) + graph.constant, done
