"""The exact chain of a small program: all instances together as one selection Problem.

Its nodes are those of the segments' Problems, tied together at the boundaries. A saved tensor counts once per storage
and layout, by a node of its own. The transient of a segment is a node too, whose option is a number of bytes that no op
of the segment may exceed. Each segment has a memory row: all held bytes and its own transient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from meshwright.planner.chain.chains import Chain
from meshwright.planner.effort import RESOLUTION, RETRIES
from meshwright.planner.sharding.model import ShardingModel
from meshwright.planner.sharding.segment import SegmentProblem
from meshwright.price.parameter import local_bytes, parameter_price
from meshwright.price.segment import kept_values, kernels, shards
from meshwright.profile import saved
from meshwright.select import InfeasibleError, ProblemBuilder, solve
from meshwright.select.problem import Floats, Problem

WORK = 4000.0
"""Of the engine, in millions of steps and nodes of HiGHS: the same answer on a busy machine. Programs whose nodes
have more options together are left to `lagrangian`."""

Charge = Callable[[int], None]
"""Told the options of a Problem before the engine solves it within a budget. What it raises ends the search."""


def uncharged(options: int) -> None:
    """A search that no work budget ends."""


def is_small(shardings: ShardingModel) -> bool:
    return shardings.options <= WORK


@dataclass(slots=True)
class ChainProblem:
    """Builder of the Problem.

    firsts: the number of each segment's first node.
    begins: for each boundary value or tied weight, the first node that stands for it.
    """

    shardings: ShardingModel
    build: ProblemBuilder = field(default_factory=ProblemBuilder)
    firsts: list[int] = field(default_factory=list)
    begins: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, shardings: ShardingModel) -> ChainProblem:
        whole = cls(shardings)
        for index in range(len(shardings.program.segments)):
            whole.add(index)
        whole.limit()
        return whole

    def add(self, index: int) -> None:
        """A segment's nodes, with its boundary tied to earlier segments."""
        own = self.shardings.problem(index)
        costs = own.at(0.0, overlap_weight=self.shardings.overlap_weight).costs
        first = -1
        for node in range(own.problem.nodes):
            where = slice(own.problem.offsets[node], own.problem.offsets[node + 1])
            added = self.build.node(costs[where], name=own.problem.label(node))
            first = added if first < 0 else first
        self.firsts.append(first)
        for edge in range(own.problem.edges):
            a, b = own.problem.edge_nodes[edge]
            self.build.edge(first + int(a), first + int(b), own.problem.matrix(edge))
        for name, side in zip(self.shardings.boundary(index), own.boundary, strict=True):
            node = first + side.node
            before = self.begins.setdefault(name, node)
            if before != node:
                self.build.edge(before, node, np.where(np.eye(len(side.layouts), dtype=bool), 0.0, np.inf))

    def limit(self) -> None:
        rows = [self.build.row(np.inf) for _ in self.firsts]
        for index, first in enumerate(self.firsts):
            own = self.shardings.problem(index)
            for option in np.flatnonzero(own.held):
                node = int(np.searchsorted(own.problem.offsets, option, side="right")) - 1
                at = int(option - own.problem.offsets[node])
                self.build.hold(rows[0], rows[-1] + 1, first + node, at, own.held[option])
            self._kept(own, first, rows)
            self._running(index, own, first, rows[index])

    def _kept(self, own: SegmentProblem, first: int, rows: list[int]) -> None:
        """For each storage and layout a node whose option is the bytes kept in every row."""
        space = own.space
        saved_storages: dict[tuple[str, object], dict[int, Floats]] = {}
        for place, (op, found) in enumerate(space.each()):
            if not any(value.grad for value in op.results):
                continue
            node = first + own.op_nodes[place]
            for option, made in enumerate(found):
                auxiliary = saved(op, space.values, kernels(space.mesh)).auxiliary_bytes // shards(made, space.mesh)
                self.build.hold(rows[0], rows[-1] + 1, node, option, auxiliary)
                for name, layout in kept_values(op, made, space.values, space.outside, space.mesh):
                    type_ = space.values[name].type
                    needs = saved_storages.setdefault((space.bases[name], layout), {}).setdefault(
                        node, np.zeros(len(found))
                    )
                    needs[option] = max(needs[option], local_bytes(type_.sizes, type_.itemsize, layout, space.mesh))
        for key, readers in saved_storages.items():
            levels = np.unique(np.concatenate([[0.0], *readers.values()]))
            kept = self.build.node(np.zeros(len(levels)), name=f"{key[0]} kept")
            for option, size in enumerate(levels):
                self.build.hold(rows[0], rows[-1] + 1, kept, option, size)
            for node, needs in readers.items():
                self.build.edge(node, kept, np.where(levels[None, :] >= needs[:, None], 0.0, np.inf))

    def _running(self, index: int, own: SegmentProblem, first: int, row: int) -> None:
        """The transient of a segment: gathered weights, and the level that its largest op needs."""
        space = own.space
        for value in space.graph.params:
            uses = own.tied[value.name].uses if value.name in own.tied else 1
            for option, plan in enumerate(own.options[value.name]):
                price = parameter_price(value, plan, space.mesh, space.setting, max(1, uses))
                size = price.transient_bytes if uses else 0
                self.build.use(row, first + own.makers[value.name].node, option, size)
        asked = {first + node: space.running_bytes(place) for place, node in enumerate(own.op_nodes)}
        anyway = max(sizes.min() for sizes in asked.values())
        moved = {way: sizes for way in own.conversions if (sizes := own.moving_bytes(way)).max() > anyway}
        levels = np.unique(np.concatenate([*asked.values(), *(sizes.ravel() for sizes in moved.values())]))
        level = self.build.node(np.zeros(len(levels)), name=f"segment {index} runs")
        for option, size in enumerate(levels):
            self.build.use(row, level, option, size)
        for node, sizes in asked.items():
            self.build.edge(node, level, np.where(levels[None, :] >= sizes[:, None], 0.0, np.inf))
        for way, sizes in moved.items():
            self._moving(first + way.maker.node, first + way.node, level, sizes, levels)

    def _moving(self, maker: int, reader: int, level: int, sizes: Floats, levels: Floats) -> None:
        """The transient of a conversion depends on both of its ends: a node joins the level and the first of them."""
        rows, row_of = np.unique(sizes, axis=0, return_inverse=True)
        count = len(levels)
        between = self.build.node(np.zeros(len(rows) * count), name="converts")
        row, at = np.divmod(np.arange(len(rows) * count), count)
        self.build.edge(maker, between, np.where(row_of.reshape(-1)[:, None] == row[None, :], 0.0, np.inf))
        self.build.edge(level, between, np.where(np.arange(count)[:, None] == at[None, :], 0.0, np.inf))
        self.build.edge(reader, between, np.where(levels[at][None, :] >= rows[row].T, 0.0, np.inf))

    def problem(self) -> Problem:
        """Without limits. Costs are seconds times `ShardingModel.scale`; each segment has a row of bytes."""
        return self.build.build()

    def chain(self, choice: Sequence[int], price: float) -> Chain:
        """The chain of a choice. price: recorded in the Chain, per byte."""
        points, options = [], []
        for index, first in enumerate(self.firsts):
            own = self.shardings.problem(index)
            picked = list(choice[first : first + own.problem.nodes])
            options.append(tuple(int(picked[side.node]) for side in own.boundary))
            answer = own.answer(picked, self.shardings.program.segments[index].graph, 0.0)
            points.append(self.shardings.priced(index, answer))
        return Chain(tuple(points), tuple(options), self.shardings.setting.microbatches, price)


def limited(problem: Problem, budget_bytes: int) -> Problem:
    """The Problem with this budget in every row."""
    return replace(problem, limits=np.full(len(problem.limits), float(budget_bytes)))


def whole_problem(shardings: ShardingModel, budget_bytes: int) -> Problem:
    """The whole chain as one Problem."""
    return limited(ChainProblem.of(shardings).problem(), budget_bytes)


def exact_chain(
    shardings: ShardingModel, budget_bytes: int, price: float, charge: Charge = uncharged
) -> tuple[Chain | None, float]:
    """(the fastest chain that fits, None where none was found; a lower bound in seconds on all that fit).

    price: recorded in the Chain, per byte.
    """
    whole = ChainProblem.of(shardings)
    problem, bounds = whole.problem(), [float("inf")]
    if len(problem.costs) > RESOLUTION:
        return None, 0.0  # it would take minutes, and hardly save anything

    def within(room_bytes: int) -> Chain | None:
        charge(len(problem.costs))
        try:
            found = solve(limited(problem, room_bytes), work=WORK)
        except InfeasibleError:
            return None
        bounds.append(found.bound / shardings.scale)
        return whole.chain(found.choice, price)

    return retry_smaller_budget(within, budget_bytes), bounds[min(1, len(bounds) - 1)]


def retry_smaller_budget(within: Callable[[int], Chain | None], budget_bytes: int) -> Chain | None:
    """A chain whose peak fits, pending gradients included, which are no part of the Problem: the budget is reduced, by
    twice as much each time.

    within: finds a chain within a number of bytes.
    """
    room_bytes = budget_bytes
    for number in range(RETRIES):
        chain = within(room_bytes)
        if chain is None or chain.peak_bytes <= budget_bytes:
            return chain
        room_bytes -= (chain.peak_bytes - budget_bytes) << number
    return None
