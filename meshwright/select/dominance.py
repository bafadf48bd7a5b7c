"""Options that no choice needs: option s of a node is dominated by t when, whatever its neighbours choose,

    c(t) - c(s) + sum over edges of max_j [ E(t, j) - E(s, j) ]  <=  0.

Putting t in place of s then never costs more, so s can go: exactly, for every combination of other nodes' options
(Goldstein's criterion). Repeated until nothing changes, since fewer options of one node leave fewer cases at the next.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from meshwright.select.problem import Floats, Ints, Problem

Edge = tuple[int, Floats]


def undominated(problem: Problem, protected: Iterable[int] = ()) -> list[Ints]:
    """For each node the options that remain. Rows are not looked at; `protected` nodes keep all of theirs."""
    remaining = [np.arange(problem.options(node)) for node in range(problem.nodes)]
    around = _edges(problem)
    untouched = set(protected)
    queue = [node for node in range(problem.nodes) if node not in untouched]
    waiting = set(queue)
    while queue:
        node = queue.pop(0)
        waiting.discard(node)
        kept = _reduce(problem, node, remaining, around[node])
        if len(kept) < len(remaining[node]):
            remaining[node] = kept
            for other, _ in around[node]:
                if other not in untouched and other not in waiting:
                    queue.append(other)
                    waiting.add(other)
    return remaining


def _edges(problem: Problem) -> list[list[Edge]]:
    """Per node its edges, own options as rows; parallel edges are added up."""
    joined: dict[tuple[int, int], Floats] = {}
    for edge, (a, b) in enumerate(problem.edge_nodes.tolist()):
        matrix = problem.matrix(edge)
        for pair, seen in (((a, b), matrix), ((b, a), matrix.T)):
            joined[pair] = joined[pair] + seen if pair in joined else seen
    found: list[list[Edge]] = [[] for _ in range(problem.nodes)]
    for (node, other), matrix in joined.items():
        found[node].append((other, matrix))
    return found


def _reduce(problem: Problem, node: int, remaining: list[Ints], edges: list[Edge]) -> Ints:
    own = remaining[node]
    costs = problem.costs[problem.offsets[node] : problem.offsets[node + 1]][own]
    usable = np.isfinite(costs)
    for other, matrix in edges:
        # An option that no remaining option of a neighbour goes with is no option.
        usable &= np.isfinite(matrix[np.ix_(own, remaining[other])]).any(axis=1)
    if not usable.any():
        return own[:1]  # no choice exists; the tables will say so
    own, costs = own[usable], costs[usable]
    # worst[t, s]: how much more t may cost than s.
    worst = costs[:, None] - costs[None, :]
    for other, matrix in edges:
        worst = worst + _worst(matrix[np.ix_(own, remaining[other])])
        if not (np.sum(worst <= 0, axis=0) > 1).any():
            return own
    return own[_survivors(worst)]


def _worst(block: Floats) -> Floats:
    """max_j of block[t, j] - block[s, j]; a pair that s cannot have anyway does not count against t."""
    with np.errstate(invalid="ignore"):
        difference = block[:, None, :] - block[None, :, :]
    difference[:, np.isinf(block)] = -np.inf
    return np.asarray(difference.max(axis=2))


def _survivors(worst: Floats) -> Ints:
    """One after another: an option goes if one that is still there dominates it."""
    alive = np.ones(len(worst), dtype=bool)
    for option in range(len(worst) - 1, -1, -1):
        alive[option] = False
        alive[option] = not (worst[alive, option] <= 0).any()
    return np.flatnonzero(alive)
