"""The cheapest chain at one price per byte: a shortest path over the layouts of the values alive between segments.

What has been reached has one axis per alive value; a tied weight is alive from its first reader to its last. A segment
adds its table over inputs, outputs and tied weights; what no later segment reads is minimised out, and the minimising
options are kept for the way back. Which axes these are is the same at every price (`_Step`).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from meshwright.errors import PlanError
from meshwright.select.problem import Floats, Ints
from meshwright.solve.intra.frontier import Frontier, Options

MOST_STATES = 5e7


@dataclass(frozen=True, slots=True)
class _Step:
    """One segment. reached, table: the shapes in which what was reached and the segment's table, its axes in `order`,
    broadcast. axes: of their sum, what stays alive first. kept: what is alive afterwards. dying: what is decided here,
    in options of `widths`. shape: (of what stays alive, -1)."""

    reached: tuple[int, ...]
    order: tuple[int, ...]
    table: tuple[int, ...]
    axes: tuple[int, ...]
    shape: tuple[int, ...]
    kept: tuple[str, ...]
    dying: tuple[str, ...]
    widths: tuple[int, ...]


def walk(frontier: Frontier, price: float) -> tuple[float, list[Options]]:
    """(least seconds + price * held bytes, the boundary options of every segment) over all chains."""
    steps, best = _steps(frontier), []
    reached: Floats = np.zeros(())
    for index, step in enumerate(steps):
        flat = _weighed(frontier, index, step, reached, price)
        best.append(flat.argmin(axis=-1))
        reached = flat.min(axis=-1)
        _check(frontier, index, reached)
    frontier.costs[frontier.key(price)] = float(reached)
    return float(reached), _path(frontier, steps, best)


def least_cost(frontier: Frontier, price: float) -> float:
    """The first of `walk`. Searches under other budgets ask for the same prices."""
    key = frontier.key(price)
    if key not in frontier.costs:
        reached: Floats = np.zeros(())
        for index, step in enumerate(_steps(frontier)):
            reached = _weighed(frontier, index, step, reached, price).min(axis=-1)
            _check(frontier, index, reached)
        frontier.costs[key] = float(reached)
    return frontier.costs[key]


def _weighed(frontier: Frontier, index: int, step: _Step, reached: Floats, price: float) -> Floats:
    """Over what stays alive and, on the last axis, all that is decided here."""
    table = frontier.solve(index, price).costs
    total = reached.reshape(step.reached) + table.transpose(step.order).reshape(step.table)
    return total.transpose(step.axes).reshape(step.shape)


def _check(frontier: Frontier, index: int, reached: Floats) -> None:
    if not np.isfinite(reached).any():
        name = frontier.program.segments[index].name
        raise PlanError(f"no way is left to run layer {name}", "pins that agree", "drop one of them")


def _steps(frontier: Frontier) -> list[_Step]:
    if not frontier.steps:
        frontier.steps.extend(_made(frontier))
    return frontier.steps


def _made(frontier: Frontier) -> list[_Step]:
    found: list[_Step] = []
    alive: tuple[str, ...] = ()
    widths: dict[str, int] = {}
    for index, segment in enumerate(frontier.program.segments):
        names = frontier.boundary(index)
        sides = frontier.problem(index).boundary
        widths.update((name, len(side.layouts)) for name, side in zip(names, sides, strict=True))
        here = (*alive, *(name for name in names if name not in alive))
        if prod(widths[name] for name in here) > MOST_STATES:
            raise PlanError(
                f"{len(here)} values alive at layer {segment.name}, with too many combinations of layouts",
                f"at most {MOST_STATES:,.0f} combinations",
                "pin dp or tp, or plan for fewer mesh axes",
            )
        kept = tuple(name for name in here if frontier.last_reader.get(name, -1) > index)
        dying = tuple(name for name in here if name not in kept)
        found.append(
            _Step(
                tuple(widths[name] if name in alive else 1 for name in here),
                tuple(names.index(name) for name in here if name in names),
                tuple(widths[name] if name in names else 1 for name in here),
                tuple(here.index(name) for name in (*kept, *dying)),
                (*(widths[name] for name in kept), prod(widths[name] for name in dying)),
                kept,
                dying,
                tuple(widths[name] for name in dying),
            )
        )
        alive = kept
    return found


def _path(frontier: Frontier, steps: list[_Step], best: list[Ints]) -> list[Options]:
    chosen: dict[str, int] = {}
    for step, picks in zip(reversed(steps), reversed(best), strict=True):
        number = int(picks[tuple(chosen[name] for name in step.kept)])
        for name, width in zip(reversed(step.dying), reversed(step.widths), strict=True):
            number, chosen[name] = divmod(number, width)
    return [tuple(chosen[name] for name in frontier.boundary(index)) for index in range(len(steps))]
