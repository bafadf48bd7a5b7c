"""The least cost for every combination of options of a few kept nodes, all other nodes chosen best.

`tables_plan` prepares the elimination of the others once, whatever the node costs; `TablesPlan.run` fills the tables
for some, in a small part of the time. `Tables.choice` reads back a choice for one combination. Rows are not looked
at.

>>> from meshwright.select import ProblemBuilder
>>> build = ProblemBuilder()
>>> a, b = build.node([0.0, 0.0]), build.node([5.0, 1.0])
>>> _ = build.edge(a, b, [[0.0, 9.0], [9.0, 0.0]])
>>> problem = build.build()
>>> plan = tables_plan(problem, [a])
>>> plan.run(problem.costs).costs.tolist()
[5.0, 1.0]
>>> plan.run(problem.costs + [0, 0, 0, 10]).choice([1])
[1, 1]
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.errors import ProblemError
from meshwright.select.elimination import Filled, Order, TooWideError, least_of_each, plan
from meshwright.select.problem import Floats, Problem


@dataclass(frozen=True, slots=True)
class Tables:
    """`costs` has one axis per kept node; +inf where no choice exists."""

    filled: Filled

    @property
    def kept(self) -> tuple[int, ...]:
        return self.filled.order.kept

    @property
    def costs(self) -> Floats:
        return self.filled.least

    def choice(self, options: Sequence[int]) -> list[int]:
        """A best choice of all nodes with these options of the kept ones."""
        if not np.isfinite(self.costs[tuple(options)]):
            raise ProblemError(f"options {tuple(options)} of nodes {self.kept}", "a combination of finite cost")
        return self.filled.choice(options)


@dataclass(frozen=True, slots=True)
class TablesPlan:
    """What does not depend on node costs. `entries`: table entries that one run fills."""

    order: Order
    options: int

    @property
    def entries(self) -> int:
        return self.order.entries

    def run(self, costs: Floats) -> Tables:
        """The tables for these option costs, laid out as `Problem.costs`."""
        if len(costs) != self.options:
            raise ProblemError(f"{len(costs)} option costs", f"{self.options}, one per option of the problem")
        return Tables(self.order.run(costs))

    def least_of_each(self, costs: Floats) -> Floats:
        """The least total for each row of option costs; of plans that keep no node."""
        return least_of_each(self.order, costs)


def tables_plan(
    problem: Problem, kept: Sequence[int], most_entries: float = 2e8, varying: Collection[int] | None = None
) -> TablesPlan:
    """Prepares tables over `kept`. Raises `ProblemError` when one would have more than `most_entries`. varying: nodes
    whose costs will change from run to run, all unless given; tables of the others are filled again only if theirs do.
    """
    try:
        return TablesPlan(plan(problem, kept, largest=most_entries, varying=varying), len(problem.costs))
    except TooWideError as wide:
        raise ProblemError(wide.given, wide.expected, "use `solve` instead") from wide


def tables(problem: Problem, kept: Sequence[int], most_entries: float = 2e8) -> Tables:
    """`tables_plan` and a run for the problem's own costs."""
    return tables_plan(problem, kept, most_entries).run(problem.costs)
