"""The smallest memory budget in which a plan fits, found by bisection over feasibility tests.

A feasibility test is one part of the planner that stops at its first plan (`feasibility`). The set of budgets that a
test accepts need not be an interval, and tests differ in it. So the budget is lowered test by test, and is called a
minimum only where every test refused one byte less.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import ceil

from meshwright.plan import Plan
from meshwright.plan.units import show_enough
from meshwright.planner.effort import ANY_BYTES, EFFORTS, FEW, NEAR, RESOLUTION, ROUGH

ON_HOST = {"optimizer": "optimizer state on the host", "weight": "weights and optimizer state on the host"}


@dataclass(frozen=True, slots=True, order=True)
class MemoryNeeded:
    """A budget in which a plan fits.

    bytes: per device.
    how: what that plan does to save memory.
    microbatches: of that plan.
    refused: no plan fits in one byte less.
    sure: a feasibility test accepted the budget. Otherwise it is an estimate, and the work budget is spent.
    """

    bytes: int
    how: str
    microbatches: int
    refused: bool = False
    sure: bool = True

    def __str__(self) -> str:
        pieces = f"{self.microbatches} micro-batches" if self.microbatches > 1 else "one micro-batch"
        return f"{self.how}, in {pieces}"

    def offloading(self, kind: str) -> MemoryNeeded:
        """The same, saying what is on the host."""
        return replace(self, how=f"{self.how}, {ON_HOST[kind]}") if kind else self

    def against(self, budget_bytes: int) -> str:
        """The expected part of a refusal of `budget_bytes`."""
        size, more = f"{self.bytes:,} bytes ({show_enough(self.bytes)})", f"{self.bytes - budget_bytes:,} more"
        if not self.sure:
            return f"about {size}, {more}, by an estimate: {self}"
        least = "one byte less is refused" if self.refused else "less may be enough"
        return f"{size} are enough, {more}: {self}; {least}"


def needed_by(plan: Plan) -> MemoryNeeded:
    """The peak of a plan, and how it saves memory."""
    how = "everything kept"
    if plan.order:
        how = "layers run forward more than once"
    elif plan.recomputes:
        how = "values recomputed"
    stages = len(plan.groups)
    return MemoryNeeded(plan.predicted.peak_bytes, f"{stages} stages, {how}" if stages > 1 else how, plan.microbatches)


FeasibilityTest = Callable[[int], MemoryNeeded | None]
"""What the first plan within a budget needs; None where this part of the planner finds none."""


class _SpentError(Exception):
    """The work budget is spent."""


class WorkBudget:
    """Counts the segments of the shardings that were examined, so a refusal does not depend on the machine's load.

    segments: of the program. Examining one sharding costs so many units; a chain that is solved exactly costs
        units in proportion to its options.
    units: of the whole budget. The best memory known by then is named.
    options: of a sharding, which costs as much as a chain of so many where that is more.
    """

    def __init__(self, segments: int, units: int = RESOLUTION, options: int = 0) -> None:
        self.segments, self.left = segments, units
        self.each = max(segments, self._of_options(options))

    def spend(self, shardings: int = 1) -> None:
        """Called before shardings are examined. The first that the budget does not cover ends the search."""
        if self.left <= 0:
            raise _SpentError
        self.left -= shardings * self.each

    def spend_options(self, options: int) -> None:
        """The same before a chain is solved exactly: of RESOLUTION options, as much as a node that is refined."""
        self.spend(0)
        self.left -= self._of_options(options)

    def _of_options(self, options: int) -> int:
        return ceil(options * EFFORTS["default"].shardings * self.segments / RESOLUTION)

    def check(self, units: int) -> None:
        """Ends the search before a test that is expected to take more than is left."""
        if units > self.left:
            raise _SpentError


def smallest_budget(fits: Callable[[int], bool], low: int, high: int, segments: int) -> int:
    """Bisection for a budget that fits where a little less does not: to the byte for few segments.

    low: a budget that does not fit.
    high: is doubled until it fits.
    """
    while not fits(high):
        low, high = high, 2 * high
    while high - low > (1 if segments <= FEW else max(1, int(NEAR * high))):
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def minimum_budget(
    tests: Sequence[FeasibilityTest], refused_bytes: int, known: MemoryNeeded, exact: bool, work: WorkBudget
) -> MemoryNeeded:
    """The smallest budget that any of the tests accepts, as far as the work budget goes.

    tests: the quickest first.
    refused_bytes: a budget that all of them refuse.
    known: an estimate to begin with.
    exact: to the byte; otherwise to the part NEAR.
    """
    known = replace(known, bytes=max(known.bytes, refused_bytes + 1))
    search = _Descent(known, exact, work)
    refused = dict.fromkeys(range(len(tests)), refused_bytes)
    behind = list(refused)
    try:
        search.confirm(tests)
        while behind:
            refused[behind[0]] = search.descend(tests[behind[0]], refused_bytes)
            behind = [i for i in refused if not search.is_done(refused[i])]
            if not behind and any(search.leap(test, refused_bytes) for test in tests):
                behind = list(refused)
    except _SpentError:
        return search.best
    return replace(search.best, refused=search.exact)


def minimum_pipeline_budget(test: FeasibilityTest, refused_bytes: int, segments: int) -> MemoryNeeded | None:
    """`minimum_budget` of pipelines alone; None where there is no such pipeline in any amount of memory."""
    known = test(ANY_BYTES)
    if known is None:
        return None
    work = WorkBudget(segments)
    return minimum_budget((charged(test, work),), refused_bytes, known, segments <= FEW, work)


def charged(pipeline_test: FeasibilityTest, work: WorkBudget) -> FeasibilityTest:
    """A test of pipelines that takes its share of the work budget."""

    def test(budget: int) -> MemoryNeeded | None:
        work.spend(EFFORTS["default"].probed)
        return pipeline_test(budget)

    return test


@dataclass(slots=True)
class _Descent:
    """Lowers the best budget known.

    best_peak: bytes of the plan that was found in the best budget, a smaller budget that may do.
    took: units that each test took last. A test is not run where fewer are left.
    """

    best: MemoryNeeded
    exact: bool
    work: WorkBudget
    best_peak: int = field(init=False)
    took: dict[FeasibilityTest, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.best_peak = self.best.bytes

    @property
    def width(self) -> int:
        return 1 if self.exact else max(1, int(NEAR * self.best.bytes))

    def is_done(self, refused: int) -> bool:
        """Whether a test that refused so many bytes cannot lower the best further."""
        below = self.best.bytes - self.width
        return refused == below if self.exact else refused >= below

    def confirm(self, tests: Sequence[FeasibilityTest]) -> None:
        """Doubles the best until some test accepts it."""
        known = self.best
        try:
            while not any(self._accepts(test, self.best.bytes) for test in tests):
                self.best = replace(known, bytes=2 * self.best.bytes)
        except _SpentError:
            self.best = replace(known, sure=False)
            raise

    def descend(self, test: FeasibilityTest, low: int) -> int:
        """Lowers the best as long as the test accepts it; returns the largest budget that the test refused.

        A budget slightly below the last plan's peak is tried first, since it is mostly refused and ends the search.
        """
        below = self.best.bytes - self.width
        if below <= low or not self._accepts(test, below):
            return below
        near = True
        while self.best.bytes - low > self.width:
            below = self.best_peak - self.width
            at = below if near and below > low else (low + self.best.bytes) // 2
            if self._accepts(test, at):
                near = not near
                continue
            low, near = at, False
            peak = self.best_peak
            if low < peak < self.best.bytes and peak - low <= self.width and not self._accepts(test, peak):
                low = self.best_peak
        return low

    def leap(self, test: FeasibilityTest, low: int) -> bool:
        """Whether the test accepts far less, though a little less was refused; asked of small programs alone."""
        far = int(self.best.bytes / ROUGH)
        return self.work.segments <= FEW and far > low and self._accepts(test, far)

    def _accepts(self, test: FeasibilityTest, budget: int) -> bool:
        self.work.check(self.took.get(test, 1))
        before = self.work.left
        self.work.spend()
        found = test(budget)
        self.took[test] = before - self.work.left
        if found is None:
            return False
        self.best, self.best_peak = replace(found, bytes=budget), found.bytes
        return True
