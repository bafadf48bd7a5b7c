"""Enumeration of all chains of a tiny program below a limit.

Depth first over the nodes of each segment's Problem, then along the chain. A partial choice is cut off where its nodes
and edges, with the cheapest option of every other node, cost at least the limit.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from meshwright.planner.chain.chains import Chain
from meshwright.planner.chain.exact import is_small
from meshwright.planner.sharding.model import Options, Point, ShardingModel
from meshwright.select.problem import Floats, Problem

Offered = dict[Options, dict[str, tuple[float, Point]]]
"""For each boundary of a segment, its distinct points and their costs."""


class TooManyError(Exception):
    """More partial choices than the limit."""


def every_chain(shardings: ShardingModel, limit_s: float, most: int) -> list[Chain]:
    """All chains faster than the limit, and maybe some slower ones, in no order.

    limit_s: in seconds.
    most: partial choices above which TooManyError is raised.
    """
    if not shardings.bounds or not is_small(shardings):
        raise TooManyError
    segments = range(len(shardings.program.segments))
    count, limit = _Count(most), limit_s * shardings.scale
    costs = [shardings.problem(index).at(0.0, overlap_weight=shardings.overlap_weight) for index in segments]
    least = [sum(one.costs[a:b].min() for a, b in _spans(one)) for one in costs]
    alive: dict[tuple[tuple[str, int], ...], list[tuple[float, tuple[Point, ...], tuple[Options, ...]]]]
    alive = {(): [(0.0, (), ())]}
    for index in segments:
        others = sum(least) - least[index]
        offered = _offered(shardings, index, costs[index], limit - others, count)
        names, rest = shardings.boundary(index), sum(least[index + 1 :])
        following: dict[tuple[tuple[str, int], ...], list[tuple[float, tuple[Point, ...], tuple[Options, ...]]]] = {}
        for before, labels in alive.items():
            for options, ways in offered.items():
                here = dict(zip(names, options, strict=True))
                if any(here.get(name, option) != option for name, option in before):
                    continue
                both = dict(before) | here
                after = tuple(sorted(one for one in both.items() if shardings.last_reader.get(one[0], -1) > index))
                for cost, points, taken in labels:
                    for more, point in ways.values():
                        if cost + more + rest < limit:
                            count.add()
                            label = (cost + more, (*points, point), (*taken, options))
                            following.setdefault(after, []).append(label)
        alive = following
    number = shardings.setting.microbatches
    return [Chain(points, taken, number) for labels in alive.values() for _, points, taken in labels]


class _Count:
    def __init__(self, most: int) -> None:
        self.left = most

    def add(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise TooManyError


def _offered(shardings: ShardingModel, index: int, problem: Problem, limit: float, count: _Count) -> Offered:
    own, graph = shardings.problem(index), shardings.program.segments[index].graph
    found: Offered = {}
    for cost, picked in _choices(problem, limit, count):
        answer = own.answer(picked, graph, 0.0)
        options = tuple(picked[side.node] for side in own.boundary)
        ways, key = found.setdefault(options, {}), repr((answer.choice, answer.parameters))
        if key not in ways:
            ways[key] = cost, shardings.priced(index, answer)
        elif cost < ways[key][0]:
            ways[key] = cost, ways[key][1]
    return found


def _choices(problem: Problem, limit: float, count: _Count) -> Iterator[tuple[float, list[int]]]:
    """(cost, choice) of every choice below a limit."""
    spans = list(_spans(problem))
    options = [problem.costs[a:b] for a, b in spans]
    rest = np.append(np.cumsum([one.min() for one in options][::-1])[::-1], 0.0)
    earlier: list[list[tuple[int, Floats]]] = [[] for _ in spans]
    for edge, (a, b) in enumerate(problem.edge_nodes.tolist()):
        matrix = problem.matrix(edge)
        earlier[max(a, b)].append((min(a, b), matrix if a < b else matrix.T))
    picked: list[int] = []

    def extended(cost: float) -> Iterator[tuple[float, list[int]]]:
        node = len(picked)
        if node == len(spans):
            yield cost, list(picked)
            return
        costs = options[node] + cost
        for other, matrix in earlier[node]:
            costs = costs + matrix[picked[other]]
        for option in np.flatnonzero(costs + rest[node + 1] < limit).tolist():
            count.add()
            picked.append(option)
            yield from extended(float(costs[option]))
            picked.pop()

    return extended(0.0)


def _spans(problem: Problem) -> Iterator[tuple[int, int]]:
    return zip(problem.offsets[:-1].tolist(), problem.offsets[1:].tolist(), strict=True)
