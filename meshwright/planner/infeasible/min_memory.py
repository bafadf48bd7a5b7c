"""The smallest memory budget that the planner accepts, found by asking its parts whether anything fits.

A part may look where another does not, and none of them is sure to accept more bytes where it accepts fewer. So each
comes down by itself from what is known to do, and one byte less is called refused where every part was asked for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from meshwright.plan import Plan
from meshwright.plan.units import show_enough
from meshwright.planner.effort import ANY_BYTES, EFFORTS, EXACT, NEAR

WORK = 1500
"""Segments of shardings that may be examined for one refusal. What is known to do by then is named."""


@dataclass(frozen=True, slots=True, order=True)
class MemoryNeeded:
    """Bytes in which a plan was found to fit, and how it does. refused: with one byte less there is none. sure: the
    planner was asked; else it is what a plan should take, and the work budget was spent before."""

    bytes: int
    how: str
    microbatches: int
    refused: bool = False
    sure: bool = True

    def __str__(self) -> str:
        pieces = f"{self.microbatches} micro-batches" if self.microbatches > 1 else "one micro-batch"
        return f"{self.how}, in {pieces}"

    def against(self, budget_bytes: int) -> str:
        """As a refusal says what was expected."""
        size, more = f"{self.bytes:,} bytes ({show_enough(self.bytes)})", f"{self.bytes - budget_bytes:,} more"
        if not self.sure:
            return f"about {size}, {more}, by an estimate: {self}"
        least = "one byte less is refused" if self.refused else "less may be enough"
        return f"{size} are enough, {more}: {self}; {least}"


def needed_by(plan: Plan) -> MemoryNeeded:
    """What a plan takes, and how."""
    how = "everything kept"
    if plan.order:
        how = "layers run forward more than once"
    elif plan.recomputes:
        how = "values recomputed"
    stages = len(plan.groups)
    return MemoryNeeded(plan.predicted.peak_bytes, f"{stages} stages, {how}" if stages > 1 else how, plan.microbatches)


Part = Callable[[int], MemoryNeeded | None]
"""Of a budget: a plan that fits, as a part of the planner finds it; None where it finds none."""


class _SpentError(Exception):
    """The work budget is spent."""


class WorkBudget:
    """Counts segments of the shardings that were examined, never seconds: the same refusal on a busy machine.

    segments: of the program; examining one sharding takes so many units.
    exact: the minimum is to be found to the byte.
    units: of the whole budget; by `exact` unless given.
    """

    def __init__(self, segments: int, exact: bool, units: int | None = None) -> None:
        self.segments, self.left = segments, WORK if units is None else units

    def spend(self, shardings: int = 1) -> None:
        """Before shardings are examined. The first that the budget does not cover is refused."""
        if self.left <= 0:
            raise _SpentError
        self.left -= shardings * self.segments

    def check(self, units: int) -> None:
        """Refuses a question that is expected to take more than is left."""
        if units > self.left:
            raise _SpentError


def minimum_budget(
    parts: Sequence[Part], refused_bytes: int, known: MemoryNeeded, exact: bool, work: WorkBudget
) -> MemoryNeeded:
    """parts: the quickest first. refused_bytes: a budget that all of them refuse. known: one that does. exact: to the
    byte."""
    known = replace(known, bytes=max(known.bytes, refused_bytes + 1))
    search = _Search(known, exact, work)
    refused = dict.fromkeys(range(len(parts)), refused_bytes)
    behind = list(refused)
    try:
        search.confirm(parts)
        while behind:
            refused[behind[0]] = search.descend(parts[behind[0]], refused_bytes)
            behind = [i for i in refused if not search.done(refused[i])]
    except _SpentError:
        return search.best
    return replace(search.best, refused=search.exact)


def minimum_pipeline_budget(in_stages: Part, refused_bytes: int, segments: int) -> MemoryNeeded | None:
    """None where there is no such pipeline in any number of bytes."""
    known = in_stages(ANY_BYTES)
    if known is None:
        return None
    exact = segments <= EXACT
    work = WorkBudget(segments, exact)
    return minimum_budget((counted_pipeline(in_stages, work),), refused_bytes, known, exact, work)


def counted_pipeline(in_stages: Part, work: WorkBudget) -> Part:
    """The same question, with its share of the work."""

    def asked(budget: int) -> MemoryNeeded | None:
        work.spend(EFFORTS["default"].probed)
        return in_stages(budget)

    return asked


@dataclass(slots=True)
class _Search:
    best: MemoryNeeded
    exact: bool
    work: WorkBudget
    tip: int = field(init=False)
    """Bytes of the plan that was found in the best budget: a smaller one that may do."""
    took: dict[Part, int] = field(default_factory=dict)
    """Units of the last question to each part: one that would take as many again is not asked where fewer are left."""

    def __post_init__(self) -> None:
        self.tip = self.best.bytes

    @property
    def width(self) -> int:
        return 1 if self.exact else max(1, int(NEAR * self.best.bytes))

    def done(self, refused: int) -> bool:
        """Whether a part that refused so many bytes has nothing more to say."""
        below = self.best.bytes - self.width
        return refused == below if self.exact else refused >= below

    def confirm(self, parts: Sequence[Part]) -> None:
        """Until some part accepts the best, doubled where none does."""
        known = self.best
        try:
            while not any(self._accepted(part, self.best.bytes) for part in parts):
                self.best = replace(known, bytes=2 * self.best.bytes)
        except _SpentError:
            self.best = replace(known, sure=False)
            raise

    def descend(self, part: Part, low: int) -> int:
        """To fewer bytes as long as the part accepts them; the most that it refused. What is a little below the plan
        that was found is asked for first: mostly that is the end."""
        below = self.best.bytes - self.width
        if below <= low or not self._accepted(part, below):
            return below
        near = True
        while self.best.bytes - low > self.width:
            below = self.tip - self.width
            at = below if near and below > low else (low + self.best.bytes) // 2
            if self._accepted(part, at):
                near = not near
                continue
            low, near = at, False
            if low < self.tip < self.best.bytes and self.tip - low <= self.width and not self._accepted(part, self.tip):
                low = self.tip
        return low

    def _accepted(self, part: Part, budget: int) -> bool:
        self.work.check(self.took.get(part, 1))
        before = self.work.left
        self.work.spend()
        found = part(budget)
        self.took[part] = before - self.work.left
        if found is None:
            return False
        self.best, self.tip = replace(found, bytes=budget), found.bytes
        return True
