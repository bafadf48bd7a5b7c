"""The cheapest chain at one price per byte: a shortest path over the layouts of the values alive between segments.

The table of distances has one axis per alive value; a tied weight is alive from its first reader to its last. Each
segment adds its own table over inputs, outputs and tied weights, and values that no later segment reads are minimised
out. The first reader of a tied weight pays for it, so later readers see its layout alone: options of one layout are
merged. The path is read backwards, which finds the minimising options again. Axes do not depend on the price (`_Step`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from types import MappingProxyType

import numpy as np

from meshwright.errors import PlanError
from meshwright.layout import Layout
from meshwright.planner.sharding.model import Options, ShardingModel
from meshwright.planner.sharding.segment import LARGEST_TABLE
from meshwright.select.elimination.dense import WHOLE
from meshwright.select.problem import Floats


@dataclass(frozen=True, slots=True)
class _Axes:
    """The transposition and reshape of a table to the axes of a step: values minimised out, then values kept alive.

    order, shape: of the axes; the shape broadcasts.
    picks: for some axes, the options that represent merged ones.
    """

    order: tuple[int, ...]
    shape: tuple[int, ...]
    picks: tuple[tuple[int, tuple[int, ...]], ...] = ()

    def out(self, table: Floats) -> Floats:
        for axis, picked in self.picks:
            table = table.take(picked, axis)
        return table.transpose(self.order).reshape(self.shape)

    def column(self, table: Floats, kept: Options) -> Floats:
        """The entries at these options of the values kept alive."""
        found = self.out(table)
        for one in reversed(kept):
            found = found[..., min(one, found.shape[-1] - 1)]
        return found


@dataclass(frozen=True, slots=True)
class _Step:
    """One segment of the path.

    reached, table: axes of the distances before it, and of its own table.
    dying: values minimised out here, with their numbers of options.
    kept: values alive afterwards, with theirs.
    merged: for some of these, groups of options that are equal to later readers.
    """

    reached: _Axes
    table: _Axes
    dying: dict[str, int]
    kept: dict[str, int]
    merged: dict[str, list[list[int]]]

    def least(self, reached: Floats, table: Floats) -> Floats:
        """Distances over the values kept alive; of a large table one option of the first dying value at a time."""
        first, *others = self.dying.values() or (1,)
        if prod((first, *others, *self.kept.values())) <= WHOLE:
            found: Floats = (reached + table).min(axis=tuple(range(1 + len(others))))
        else:
            found = np.full(tuple(self.kept.values()), np.inf)
            sums = np.empty((*others, *found.shape))
            for option in range(first):
                np.add(reached[min(option, len(reached) - 1)], table[min(option, len(table) - 1)], out=sums)
                np.minimum(found, sums.min(axis=tuple(range(len(others)))) if others else sums, out=found)
        for axis, name in enumerate(self.kept):
            if name in self.merged:
                found = np.stack([found.take(same, axis).min(axis) for same in self.merged[name]], axis)
        return found

    def decided(self, reached: Floats, table: Floats, kept: Options) -> dict[str, int]:
        """The best options of dying values and of merged groups, given options of the values kept alive."""
        free = [
            self.merged[name][one] if name in self.merged else [one] for name, one in zip(self.kept, kept, strict=True)
        ]
        columns = {each: self.reached.column(reached, each) + self.table.column(table, each) for each in product(*free)}
        alive, column = min(columns.items(), key=lambda one: float(one[1].min()))
        best = np.unravel_index(column.argmin(), column.shape)
        return dict(zip(self.kept, alive, strict=True)) | dict(zip(self.dying, map(int, best), strict=False))


def walk(shardings: ShardingModel, price: float) -> tuple[float, list[Options]]:
    """(least seconds + price * held bytes, the boundary options of every segment) over all chains."""
    reached = _reached(shardings, price)
    cost = shardings.costs[shardings.key(price)] = float(reached[-1])
    return cost, _path(shardings, price, reached)


def least_cost(shardings: ShardingModel, price: float) -> float:
    """The cost of `walk`; remembered, since searches under other budgets ask for the same prices."""
    key = shardings.key(price)
    if key not in shardings.costs:
        shardings.costs[key] = float(_reached(shardings, price)[-1])
    return shardings.costs[key]


def _reached(shardings: ShardingModel, price: float) -> list[Floats]:
    """Distances before every segment and after the last, over the values alive there."""
    found: list[Floats] = [np.zeros(())]
    aligned: dict[tuple[int, _Axes], Floats] = {}
    for index, step in enumerate(_steps(shardings)):
        table = shardings.solve(index, price).costs
        key = (id(table), step.table)
        if key not in aligned:
            aligned[key] = np.ascontiguousarray(step.table.out(table))
        found.append(step.least(step.reached.out(found[-1]), aligned[key]))
        _check(shardings, index, found[-1])
    return found


def _check(shardings: ShardingModel, index: int, reached: Floats) -> None:
    if not np.isfinite(reached).any():
        name = shardings.program.segments[index].name
        raise PlanError(f"no way is left to run layer {name}", "pins that agree", "drop one of them")


def _steps(shardings: ShardingModel) -> list[_Step]:
    if not shardings.steps:
        shardings.steps.extend(_planned_steps(shardings))
    return shardings.steps


def _planned_steps(shardings: ShardingModel) -> list[_Step]:
    found: list[_Step] = []
    alive: tuple[str, ...] = ()
    widths: dict[str, int] = {}
    merged: dict[str, list[list[int]]] = {}
    for index, segment in enumerate(shardings.program.segments):
        names = shardings.boundary(index)
        sides = shardings.problem(index).boundary
        layouts = {name: side.layouts for name, side in zip(names, sides, strict=True)}
        widths |= {name: len(merged.get(name, layouts[name])) for name in names}
        here = (*alive, *(name for name in names if name not in alive))
        if prod(widths[name] for name in here) > LARGEST_TABLE:
            raise PlanError(
                f"{len(here)} values alive at layer {segment.name}, with too many combinations of layouts",
                f"at most {LARGEST_TABLE:,.0f} combinations",
                "pin dp or tp, or plan for fewer mesh axes",
            )
        kept = {name: widths[name] for name in here if shardings.last_reader.get(name, -1) > index}
        dying = {name: widths[name] for name in sorted(here, key=lambda name: -widths[name]) if name not in kept}
        table = _axes(names, dying, kept, merged)
        tied = [name for name in kept if name in names and name in shardings.uses and name not in merged]
        new = {name: _by_layout(layouts[name]) for name in tied}
        found.append(_Step(_axes(alive, dying, kept), table, dying, kept, new))
        merged |= new
        widths |= {name: len(same) for name, same in new.items()}
        alive = tuple(kept)
    return found


def _by_layout(layouts: Sequence[Layout]) -> list[list[int]]:
    """Options grouped by layout."""
    found: dict[Layout, list[int]] = {}
    for option, layout in enumerate(layouts):
        found.setdefault(layout, []).append(option)
    return list(found.values())


def _axes(
    names: Sequence[str],
    dying: dict[str, int],
    kept: dict[str, int],
    merged: Mapping[str, list[list[int]]] = MappingProxyType({}),
) -> _Axes:
    """names: of the axes of a table."""
    axes = dying | kept
    shape = tuple(width if name in names else 1 for name, width in axes.items())
    picks = tuple((axis, tuple(same[0] for same in merged[name])) for axis, name in enumerate(names) if name in merged)
    return _Axes(tuple(names.index(name) for name in axes if name in names), shape if dying else (1, *shape), picks)


def _path(shardings: ShardingModel, price: float, reached: list[Floats]) -> list[Options]:
    chosen: dict[str, int] = {}
    steps = _steps(shardings)
    for index, step in reversed(list(enumerate(steps))):
        kept = tuple(chosen[name] for name in step.kept)
        chosen |= step.decided(reached[index], shardings.solve(index, price).costs, kept)
    return [tuple(chosen[name] for name in shardings.boundary(index)) for index in range(len(steps))]
