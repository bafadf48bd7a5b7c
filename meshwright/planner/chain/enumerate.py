"""Every chain of a tiny program that could be faster than a limit.

Depth first over the nodes of each segment's Problem, then along the chain. What is cut off costs at least the limit: a
partial choice has paid its own nodes and edges, and the rest takes no less than the cheapest option of every node.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from meshwright.planner.chain.chains import Chain
from meshwright.planner.chain.exact import is_small
from meshwright.planner.sharding.model import Options, Point, ShardingModel
from meshwright.select.problem import Floats, Problem

Offered = dict[Options, dict[str, tuple[float, Point]]]
"""Of a segment, by its boundary: each way to run it, and its cost."""


class TooManyError(Exception):
    """More chains than are enumerated."""


def every_chain(shardings: ShardingModel, limit_s: float, most: int) -> list[Chain]:
    """In no order; some may take longer than the limit. most: partial choices above which TooManyError is raised."""
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
    """Every choice that costs less than a limit, with its cost."""
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
