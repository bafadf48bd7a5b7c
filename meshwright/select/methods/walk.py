"""A choice that changes one node at a time: what a change would cost, and by how much rows are over. Shared by the
survey's methods.
"""

from __future__ import annotations

import numpy as np

from meshwright.select.graph import Graph
from meshwright.select.problem import Floats, Ints, Problem


class Walk:
    """Costs of forbidden options and pairs stand as `barrier`, so that every choice has a finite energy:

    energy = cost + weight * sum_r max(0, usage_r - limit_r) / size_r.
    """

    def __init__(self, problem: Problem, choice: Ints) -> None:
        self.problem = problem
        self.graph = Graph(problem)
        self.barrier = barrier(problem)
        self.weight = self.barrier
        self.size = np.maximum(problem.limits, 1.0)
        self.cost = [np.minimum(self.graph.cost[i], self.barrier) for i in range(problem.nodes)]
        self.near = [
            [(j, np.minimum(m, self.barrier)) for j, m in self.graph.adj[i].items()] for i in range(problem.nodes)
        ]
        self.x = choice.copy()
        self.usage = problem.row_usage(self.x)

    def prices(self, node: int) -> Floats:
        """What each option of `node` costs, edges to its neighbours' present options included."""
        total = self.cost[node].copy()
        for other, matrix in self.near[node]:
            total += matrix[:, self.x[other]]
        return total

    def excess(self, node: int, option: int) -> float:
        """Change of the sum of relative excesses if `node` took `option`."""
        use = self.graph.use[node]
        change = 0.0
        for begin, end, size in zip(use.begin.tolist(), use.end.tolist(), use.bytes, strict=True):
            more = size[option] - size[self.x[node]]
            if more:
                room = self.usage[begin:end] - self.problem.limits[begin:end]
                over = np.maximum(room + more, 0.0) - np.maximum(room, 0.0)
                change += float((over / self.size[begin:end]).sum())
        return change

    def move(self, node: int, option: int) -> None:
        use = self.graph.use[node]
        for begin, end, size in zip(use.begin.tolist(), use.end.tolist(), use.bytes, strict=True):
            self.usage[begin:end] += size[option] - size[self.x[node]]
        self.x[node] = option

    def fits(self) -> bool:
        return bool((self.usage <= self.problem.limits * (1 + 1e-12)).all())


def barrier(problem: Problem) -> float:
    """More than any sensible choice costs."""
    costs = np.concatenate((problem.costs, problem.edge_costs))
    return 1.0 + 10.0 * float(np.abs(costs[np.isfinite(costs)]).max(initial=0.0))


def cheapest(problem: Problem) -> Ints:
    """The cheapest option of every node on its own."""
    bounds = zip(problem.offsets[:-1], problem.offsets[1:], strict=True)
    return np.array([int(problem.costs[a:b].argmin()) for a, b in bounds], dtype=np.int64)


def floor_bound(problem: Problem) -> float:
    """Every node and every edge at its cheapest: a bound that costs nothing."""
    least = float(np.minimum.reduceat(problem.costs, problem.offsets[:-1]).sum()) if problem.nodes else 0.0
    return least + (
        float(np.minimum.reduceat(problem.edge_costs, problem.edge_offsets[:-1]).sum()) if problem.edges else 0.0
    )


class Keeper:
    """The best choice seen: a feasible one by cost, before that the one least over."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.choice = cheapest(problem)
        self.key = (True, np.inf)

    def offer(self, choice: Ints) -> bool:
        cost = self.problem.total_cost(choice)
        over = self.problem.worst_row(choice)[1]
        broken = over > 0 or not np.isfinite(cost)
        key = (broken, over if np.isfinite(cost) else np.inf) if broken else (False, cost)
        if key < self.key:
            self.choice, self.key = choice.copy(), key
            return True
        return False

    @property
    def cost(self) -> float:
        return np.inf if self.key[0] else self.key[1]
