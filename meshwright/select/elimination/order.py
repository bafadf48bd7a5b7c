"""`plan` prepares an elimination, `Order.run` does it for given node costs, `Filled` has the results."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from meshwright.caches import CACHES
from meshwright.errors import ProblemError
from meshwright.select.elimination.dense import DenseStep, Part, dense_step, lay_out
from meshwright.select.elimination.descent import improved
from meshwright.select.elimination.factor import Factor, ImpossibleError, edge_factor
from meshwright.select.elimination.ordering import (
    Halves,
    Pass,
    best_order,
    entries_of,
    fixed_first,
    hopeless,
    in_two,
)
from meshwright.select.elimination.relation import TooManyError, join
from meshwright.select.elimination.sparse import SparseStep, sparse_step
from meshwright.select.elimination.stand_ins import Divided, divided, link, stood_in
from meshwright.select.elimination.views import View, Views
from meshwright.select.problem import Floats, Ints, Problem

Step = DenseStep | SparseStep
Axes = dict[int, View]

# Entries of a full table below which looking for forbidden combinations costs more than it saves.
SMALL = 4_096
# What part of a table may be finite for the sparse form to be the faster one.
SPARSE = 0.2


# The order found for each structure, those asked for last at the end: a planner asks for the same at other costs.
_ORDERS: dict[object, list[int]] = CACHES.own({})
MOST_ORDERS = 256


class TooWideError(ProblemError):
    """Elimination would take more table entries than allowed."""


@dataclass(frozen=True, slots=True)
class _Limits:
    """most: table entries in all. largest: entries of one table. stop: says when no time is left."""

    most: float
    largest: float
    stop: Callable[[], bool]


@dataclass(frozen=True, slots=True)
class Order:
    """A prepared elimination of all nodes but `kept`. `entries`: of all tables. `possible`: whether forbidden pairs
    leave any choice. Node numbers from `nodes` on are stand-ins that `plan` added; their options cost nothing. `known`:
    what steps left in the last run, of those whose costs seldom change; a table made of the same is not filled again.
    """

    kept: tuple[int, ...]
    nodes: int
    offsets: tuple[int, ...]
    shape: tuple[int, ...]  # of the table over the kept nodes
    entries: int = 0
    steps: tuple[Step, ...] = ()
    constants: tuple[Floats, ...] = ()
    parts: tuple[Part, ...] = ()
    members: Ints | None = None  # option entries, those of a class of a step next to each other
    starts: Ints | None = None  # where each class begins in `members`
    possible: bool = True
    known: dict[int, _Known | None] = field(default_factory=dict, compare=False)

    def run(self, costs: Floats) -> Filled:
        """Fills the tables for these option costs."""
        found: list[Floats] = []
        if not self.possible:
            return Filled(self, costs, found, np.full(self.shape, np.inf))
        costs = np.append(costs, np.zeros(self.offsets[-1] - len(costs)))
        if self.members is not None and self.starts is not None:
            classes = np.minimum.reduceat(costs[self.members], self.starts)
            begin = 0
            for number, step in enumerate(self.steps):
                found.append(self.left(number, classes[begin : begin + step.view.size], found))
                begin += step.view.size
        return Filled(self, costs, found, self._least(costs, found))

    def left(self, number: int, costs: Floats, found: Sequence[Floats]) -> Floats:
        """What a step leaves, for the costs of its node's classes and what earlier steps left."""
        step, known = self.steps[number], self.known.get(number)
        if known and known.follows(costs, found):
            return known.left
        left = np.empty(step.left.stored)
        step.fill(left, costs, found)
        if number in self.known:
            self.known[number] = _Known(costs, {one: found[one] for one in _before(step)}, left)
        return left

    def _least(self, costs: Floats, found: Sequence[Floats]) -> Floats:
        least: Floats = np.zeros(self.shape)
        for axis, node in enumerate(self.kept):
            own = costs[self.offsets[node] : self.offsets[node + 1]]
            least += own.reshape([-1 if i == axis else 1 for i in range(len(self.shape))])
        for table in self.constants:
            least += table
        for part in self.parts:
            least += part.laid_out(found[part.factor.step])
        return least


@dataclass(frozen=True, slots=True)
class _Known:
    """What a step left, and what from: the costs of its node's classes, and what the steps before it left."""

    costs: Floats
    before: dict[int, Floats]
    left: Floats

    def follows(self, costs: Floats, found: Sequence[Floats]) -> bool:
        return np.array_equal(costs, self.costs) and all(found[one] is left for one, left in self.before.items())


@dataclass(frozen=True, slots=True)
class Filled:
    """`least`: the least total for every combination of options of the kept nodes."""

    order: Order
    costs: Floats
    tables: list[Floats]
    least: Floats

    @property
    def value(self) -> float:
        """The least total of all."""
        return float(self.least.min())

    def choice(self, options: Sequence[int] = ()) -> list[int]:
        """A best choice of all nodes with these options of the kept ones, for a combination of finite cost.

        The options that attain the minima, last step first. Working out the one column of a step's table that matters
        is cheaper than having kept where every minimum was.
        """
        order = self.order
        found = [0] * (len(order.offsets) - 1)
        for node, option in zip(order.kept, options, strict=True):
            found[node] = option
        for step in reversed(order.steps):
            column = self.costs[order.offsets[step.node] : order.offsets[step.node + 1]]
            for factor in step.factors:
                values = self.tables[factor.step] if factor.values is None else factor.values
                column = column + factor.column(values, step.node, found)
            found[step.node] = int(column.argmin())
        return found[: order.nodes]


def _never() -> bool:
    return False


def plan(
    problem: Problem,
    kept: Sequence[int] = (),
    *,
    most: float = float("inf"),
    largest: float = float("inf"),
    stop: Callable[[], bool] = _never,
    varying: Collection[int] | None = None,
) -> Order:
    """Prepares the elimination of all nodes but `kept`. Raises `TooWideError` when that takes more than `most` table
    entries in all, or more than `largest` in one table, or when `stop` says so before it is done. varying: nodes whose
    costs change from run to run; all unless given.
    """
    width = np.diff(problem.offsets).tolist()
    order = Order(tuple(kept), problem.nodes, tuple(problem.offsets.tolist()), tuple(width[node] for node in kept))
    try:
        work, steps = _any_order(problem, kept, _Limits(most, largest, stop), varying)
    except ImpossibleError:
        return replace(order, possible=False)
    total = sum(step.entries for step in steps)
    axes = {node: work.views.by(range(width[node])) for node in kept}
    constants, parts = lay_out(axes, work.left(), work.views)
    offsets = np.cumsum([0, *(len(view.labels) for view in work.alone)]).tolist()
    members, starts = _classes(offsets, steps) if steps else (None, None)
    known = dict.fromkeys(_fixed(steps, varying)) if varying is not None else {}
    return replace(order, offsets=tuple(offsets), entries=total, steps=tuple(steps), constants=constants,
                   parts=parts, members=members, starts=starts, known=known)  # fmt: skip


def _any_order(
    problem: Problem, kept: Sequence[int], limits: _Limits, varying: Collection[int] | None
) -> tuple[_Work, list[Step]]:
    """With fixed nodes first, with no regard to these, or improved: the first of these that is not too wide."""
    every = range(problem.nodes)
    if varying is not None:
        with suppress(TooWideError):
            return _prepared(problem, kept, limits, varying, improve=False)
    try:
        return _prepared(problem, kept, limits, every, improve=False)
    except TooWideError:
        if limits.largest == float("inf"):
            raise
        return _prepared(problem, kept, limits, every, improve=True)


def _before(step: Step) -> list[int]:
    """The steps whose tables it adds up."""
    return [factor.step for factor in step.factors if factor.values is None]


def _fixed(steps: Sequence[Step], varying: Collection[int]) -> list[int]:
    """Those whose tables do not depend on the costs of varying nodes."""
    found: list[int] = []
    for number, step in enumerate(steps):
        if step.node not in varying and all(one in found for one in _before(step)):
            found.append(number)
    return found


def _prepared(
    problem: Problem, kept: Sequence[int], limits: _Limits, varying: Collection[int], *, improve: bool
) -> tuple[_Work, list[Step]]:
    """improve: the order, which takes longer."""
    work = _Work(problem, kept, limits, varying, improve=improve)
    steps: list[Step] = []
    left = limits.most
    for node in work.order:
        if limits.stop():
            raise TooWideError("no time left to prepare tables")
        for step in work.eliminate(node, min(limits.largest, left)):
            steps.append(step)
            left -= step.entries
    return work, steps


class _Work:
    """The factors of every node that is not gone. `alone`: what is seen of a node that is in no factor."""

    def __init__(
        self, problem: Problem, kept: Sequence[int], limits: _Limits, varying: Collection[int], *, improve: bool
    ) -> None:
        self.views = Views()
        self.kept = set(kept)
        width = np.diff(problem.offsets).tolist()
        self.scalars: list[Factor] = []
        self.count = 0
        if hopeless(width, problem.edge_nodes.tolist(), kept, limits.most):
            raise TooWideError("tables too large even for classes of options", f"at most {limits.most:,.0f} entries")
        whole = Divided(_edges(problem, self.views), [self.views.by([0] * n) for n in width])
        self.order, parts = _best(whole, kept, self.views, limits, varying, improve=improve)
        self.alone = parts.alone
        self.factors: list[dict[Factor, None]] = [{} for _ in self.alone]
        for factor in parts.factors:
            self._add(factor)

    def eliminate(self, node: int, most: float) -> Iterator[Step]:
        """One step, or more where tables are smaller so: first down to the classes that some of the factors see, for
        which a node stands in, then that node.
        """
        axes, factors = self._axes(node), tuple(self.factors[node])
        halves = in_two(node, axes, factors, self.views.join)
        if halves is None:
            yield self._replace(node, axes, most)
            return
        stand_in = self._divide(node, halves)
        step = self._replace(node, self._axes(node), most)
        yield step
        yield from self.eliminate(stand_in, most - step.entries)

    def left(self) -> list[Factor]:
        """Factors over kept nodes only, and scalars."""
        found: dict[Factor, None] = dict.fromkeys(self.scalars)
        for node in self.kept:
            found.update(self.factors[node])
        return list(found)

    def _add(self, factor: Factor) -> None:
        if not factor.nodes:
            self.scalars.append(factor)
        for node in factor.nodes:
            self.factors[node][factor] = None

    def _remove(self, factor: Factor) -> None:
        for node in factor.nodes:
            del self.factors[node][factor]

    def _divide(self, node: int, halves: Halves[Factor]) -> int:
        """A new node whose options are classes of `node`; it takes over the factors that see no more than these."""
        stand_in, view = len(self.alone), halves.view
        self.alone.append(self.views.by([0] * view.size))
        self.factors.append({})
        for factor in halves.coarse:
            self._remove(factor)
            self._add(stood_in(factor, node, stand_in, view, self.views))
        self._add(link(node, stand_in, view, self.views))
        return stand_in

    def _replace(self, node: int, axes: Axes, most: float) -> Step:
        """Puts what a step leaves in place of the factors of `node`."""
        step = self._step(node, axes, tuple(self.factors[node]), most)
        self.count += 1
        for factor in step.factors:
            self._remove(factor)
        self._add(step.left)
        return step

    def _step(self, node: int, axes: Axes, factors: tuple[Factor, ...], most: float) -> Step:
        entries = entries_of(axes)
        if entries > SMALL and any(factor.split for factor in factors):
            bound = {other for factor in factors for other in factor.nodes[: factor.split]} | {node}
            free = entries_of({other: view for other, view in axes.items() if other not in bound})
            try:
                columns = join(node, axes, factors, self.views, min(SPARSE * entries, most) / free)
                return sparse_step(node, axes, factors, self.views, self.count, columns)
            except TooManyError:
                pass
        if entries > most:
            raise TooWideError(f"a table of {entries:,} entries", f"at most {most:,.0f}")
        return dense_step(node, axes, factors, self.views, self.count)

    def _axes(self, node: int) -> Axes:
        """The nodes of the table of `node`, it first, and what its factors see of each.

        Those of its largest factor come last, in its order: long stretches of it are then added to as they lie.
        """
        axes: Axes = {node: self.alone[node]}
        by_size = sorted(self.factors[node], key=lambda one: prod(one.sizes))
        for factor in by_size:
            for other, view in zip(factor.nodes, factor.views, strict=True):
                seen = axes.get(other)
                axes[other] = view if seen is None else self.views.join(seen, view)
        last = by_size[-1].nodes if by_size else ()
        order = dict.fromkeys([node, *(other for other in axes if other not in last), *last])
        longest = max((other for other in order if other != node), key=lambda other: axes[other].size, default=node)
        return {other: axes[other] for other in [*(each for each in order if each != longest), longest]}


def _best(
    whole: Divided, kept: Sequence[int], views: Views, limits: _Limits, varying: Collection[int], *, improve: bool
) -> tuple[list[int], Divided]:
    """The best order found, and what it is an order of. improve: it is improved for its largest tables, with stand-ins
    and by a local search; else nodes that do not vary go first."""
    if improve or limits.stop is not _never:
        return _ordered(whole, kept, views, limits, varying, improve=improve)
    seen = [(f.nodes, f.split, len(f.cells), *(view.labels for view in f.views)) for f in whole.factors]
    key = (tuple(kept), limits.most, frozenset(varying), len(whole.alone), tuple(seen))
    order = _ORDERS.pop(key, None) or _ordered(whole, kept, views, limits, varying, improve=False)[0]
    if len(_ORDERS) >= MOST_ORDERS:
        del _ORDERS[next(iter(_ORDERS))]
    _ORDERS[key] = order
    return order, whole


def _ordered(
    whole: Divided, kept: Sequence[int], views: Views, limits: _Limits, varying: Collection[int], *, improve: bool
) -> tuple[list[int], Divided]:
    parts = divided(whole, kept, views) if improve else whole
    start = Pass.of(kept, parts.factors, parts.alone, views, parts.stand_ins, varying)
    order = best_order(start, limits.most, limits.stop)
    if order is None:
        raise TooWideError("tables too large in every order tried", f"at most {limits.most:,.0f} entries")
    if improve:
        order = improved(Pass.of(kept, parts.factors, parts.alone, views), order, limits.largest, limits.stop)
    else:
        order = fixed_first(start, order, limits.stop)
    return order.nodes, parts


def _edges(problem: Problem, views: Views) -> list[Factor]:
    """Parallel edges are added up."""
    joined: dict[tuple[int, int], Floats] = {}
    for edge, (a, b) in enumerate(problem.edge_nodes.tolist()):
        matrix = problem.matrix(edge)
        pair, matrix = ((a, b), matrix) if a < b else ((b, a), matrix.T)
        joined[pair] = joined[pair] + matrix if pair in joined else matrix
    return [edge_factor(pair, matrix, views) for pair, matrix in joined.items()]


def _classes(offsets: Sequence[int], steps: Sequence[Step]) -> tuple[Ints, Ints]:
    """The options of every class of every step, one after another, and where each begins."""
    members, starts, count = [], [], 0
    for step in steps:
        order = np.argsort(step.view.index, kind="stable")
        members.append(offsets[step.node] + order)
        starts.append(count + np.searchsorted(step.view.index[order], np.arange(step.view.size)))
        count += len(order)
    return np.concatenate(members), np.concatenate(starts)
