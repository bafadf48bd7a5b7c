"""The cheapest chain at one price per byte: a shortest path over the layouts of the values alive between segments.

`reached` has one axis per alive value; a tied weight is alive from its first reader to its last. A segment adds its
table over inputs, outputs and tied weights; what no later segment reads is minimised out, and the minimising
options are kept for the way back.
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
    """kept: what is alive afterwards. dying: what is decided here, its options the digits of `best`."""

    kept: tuple[str, ...]
    dying: tuple[str, ...]
    widths: tuple[int, ...]
    best: Ints


def walk(frontier: Frontier, price: float) -> tuple[float, list[Options]]:
    """(least seconds + price * held bytes, the boundary options of every segment) over all chains."""
    alive: tuple[str, ...] = ()
    reached: Floats = np.zeros(())
    steps: list[_Step] = []
    for index, segment in enumerate(frontier.program.segments):
        names = frontier.boundary(index)
        here = (*alive, *(name for name in names if name not in alive))
        parts = _over(reached, alive, here), _over(frontier.solve(index, price).costs, names, here)
        if prod(np.broadcast_shapes(*(part.shape for part in parts))) > MOST_STATES:
            raise PlanError(
                f"{len(here)} values alive at segment {segment.name}, with too many combinations of layouts",
                f"at most {MOST_STATES:,.0f} combinations",
                "pin dp or tp, or plan for fewer mesh axes",
            )
        total = parts[0] + parts[1]
        alive = tuple(name for name in here if frontier.last_reader.get(name, -1) > index)
        step, reached = _settle(total, here, alive)
        steps.append(step)
        if not np.isfinite(reached).any():
            raise PlanError(
                f"the pins leave no way to run segment {segment.name}", "pins that agree", "drop one of them"
            )
    return float(reached), _path(frontier, steps)


def _over(table: Floats, names: tuple[str, ...], here: tuple[str, ...]) -> Floats:
    """The table shaped to broadcast over these values, which include its own."""
    order = [names.index(name) for name in here if name in names]
    shape = [table.shape[names.index(name)] if name in names else 1 for name in here]
    return table.transpose(order).reshape(shape)


def _settle(total: Floats, here: tuple[str, ...], alive: tuple[str, ...]) -> tuple[_Step, Floats]:
    dying = tuple(name for name in here if name not in alive)
    widths = tuple(total.shape[here.index(name)] for name in dying)
    flat = total.transpose([here.index(name) for name in (*alive, *dying)])
    flat = flat.reshape((*flat.shape[: len(alive)], prod(widths)))
    best = flat.argmin(axis=-1)
    return _Step(alive, dying, widths, best), np.take_along_axis(flat, best[..., None], axis=-1)[..., 0]


def _path(frontier: Frontier, steps: list[_Step]) -> list[Options]:
    chosen: dict[str, int] = {}
    for step in reversed(steps):
        number = int(step.best[tuple(chosen[name] for name in step.kept)])
        options = np.unravel_index(number, step.widths) if step.widths else ()
        chosen.update((name, int(option)) for name, option in zip(step.dying, options, strict=True))
    return [tuple(chosen[name] for name in frontier.boundary(index)) for index in range(len(steps))]
