"""Rematerialisation of a sharded plan, on traced pairs of forward and backward.

By `auto` and `flat` the choice of every instance is optimal; other methods are those of `memory.methods`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from meshwright.capture.program import Program
from meshwright.pins.methods import ORDERED
from meshwright.plan import FrontierPoint, Plan, Prediction
from meshwright.planner.effort import RETRIES
from meshwright.planner.memory.instances import Instance, least_peak_bytes, solve_instances
from meshwright.planner.memory.methods import fixed_ways
from meshwright.planner.memory.nested_sharded import refine_nested
from meshwright.planner.memory.options import RematOptions
from meshwright.planner.memory.plans import with_kept
from meshwright.predict import predicted
from meshwright.price.overlap import pending_grad_bytes
from meshwright.remat.curve import RematPoint
from meshwright.remat.inner import CHUNKS

Options = Sequence[Sequence[RematPoint]]


@dataclass(frozen=True, slots=True)
class FittedRemat:
    """One point per instance, and the prediction of the step."""

    picked: list[RematPoint]
    predicted: Prediction

    def written(self, plan: Plan, program: Program) -> Plan:
        return predicted(replace(with_kept(plan, self.picked), predicted=self.predicted), program)


def refine(
    plan: Plan,
    program: Program,
    budget_bytes: int,
    chunks: tuple[int, ...] = CHUNKS,
    method: str = "auto",
    nested: bool = False,
) -> Plan | None:
    """The plan with the same sharding and the fastest rematerialisation within the budget; None where none fits.

    chunks: numbers of chunks in which the backward of an inner segment may run; each has to be traced.
    nested: by `auto`, a nested order where nothing else fits.
    """
    if plan.predicted.static_bytes > budget_bytes:
        return None
    searched = method in ("auto", "flat")
    ways = RematOptions.of(plan, program, chunks if searched else ())
    if method in ORDERED:
        return refine_nested(plan, program, ways, budget_bytes, method)
    options = ways.curves.options if method == "flat" else None
    if not searched:
        options = tuple((kept,) for kept in fixed_ways(program, ways.curves.plan, ways.curves.options, method))
    found = fit_ways(plan, ways, budget_bytes, options)
    made = fit_by_clock(plan, program, budget_bytes, found, lambda room: fit_ways(plan, ways, room, options))
    if made is None and nested and method == "auto":
        return refine_nested(plan, program, ways, budget_bytes)
    return made


def fit_by_clock(
    plan: Plan,
    program: Program,
    budget_bytes: int,
    found: FittedRemat | None,
    within: Callable[[int], FittedRemat | None],
) -> Plan | None:
    """The plan with what was found; with what is found within less where the clock counts more bytes, as it may with
    weights on the host. None where nothing fits."""
    room = budget_bytes
    for _ in range(RETRIES):
        made = found.written(plan, program) if found else None
        if made is None or made.predicted.peak_bytes <= budget_bytes:
            return made
        room -= made.predicted.peak_bytes - budget_bytes
        found = within(room)
    return None


def fit_ways(plan: Plan, ways: RematOptions, budget_bytes: int, options: Options | None = None) -> FittedRemat | None:
    """The fastest points within the budget.

    options: the points of each segment; None allows all, and offloading where the link to the host is known.
    """
    best: FittedRemat | None = None
    for pending in _pending_estimates(plan, ways, options):
        for _ in range(RETRIES):  # with the gradients that really wait: those of longer backwards are fewer
            picked = _fastest_within(ways, budget_bytes - pending, options)
            predicted = ways.predicted(picked, plan.microbatches) if picked else None
            if picked is None or predicted is None or predicted.peak_bytes > budget_bytes:
                break
            if best is None or predicted.step_s < best.predicted.step_s:
                best = FittedRemat(picked, predicted)
            fewer = pending_grad_bytes([ways.point(i, kept) for i, kept in enumerate(picked)], plan.microbatches)
            if fewer >= pending:
                break
            pending = fewer
        if best is not None:
            return best
    return None


def fit_given(
    plan: Plan, ways: RematOptions, budget_bytes: int, options: Options, points: Sequence[FrontierPoint]
) -> FittedRemat | None:
    """The options that keep the same as these points; None where they do not fit."""
    picked = []
    for offered, point in zip(options, points, strict=True):
        key = (point.choice.recompute, point.choice.keep, point.choice.chunks)
        same = [kept for kept in offered if (kept.recompute, kept.keep, kept.chunks) == key and not kept.offload]
        if not same:
            return None
        picked.append(same[0])
    predicted = ways.predicted(picked, plan.microbatches)
    return FittedRemat(picked, predicted) if predicted.peak_bytes <= budget_bytes else None


def _pending_estimates(plan: Plan, ways: RematOptions, options: Options | None) -> Iterator[int]:
    """Bytes of pending gradients with everything kept, and with as much as possible recomputed."""
    found = pending_bytes(ways, plan.microbatches)
    yield found
    if found:
        offered = ways.curves.options if options is None else options
        longest = [ways.point(i, max(kept, key=lambda one: one.seconds)) for i, kept in enumerate(offered)]
        fewest = pending_grad_bytes(longest, plan.microbatches)
        if fewest < found:
            yield fewest


def _fastest_within(ways: RematOptions, room_bytes: int, options: Options | None) -> list[RematPoint] | None:
    """The fastest points within so many bytes."""
    offered = ways.curves.options if options is None else options
    chosen = solve_instances(_instances(ways, offered), room_bytes, ways.static_bytes)
    least_s = sum(min(kept.seconds for kept in found) for found in offered)
    if options is None and (chosen is None or chosen.seconds > least_s):
        for offloading in ways.curves.with_offload():
            aside = offloading.static_bytes - ways.curves.static_bytes
            other = solve_instances(_instances(ways, offloading.options), room_bytes - aside, ways.static_bytes)
            if other is not None and (chosen is None or other.seconds < chosen.seconds):
                chosen, offered = other, offloading.options
    if chosen is None:
        return None
    return [found[number] for found, number in zip(offered, chosen.options, strict=True)]


def pending_bytes(ways: RematOptions, microbatches: int) -> int:
    """Bytes of gradients that wait for their reduction; a longer backward leaves no more of them."""
    return pending_grad_bytes(ways.points, microbatches)


def least_peak(ways: RematOptions, microbatches: int) -> int:
    """The smallest budget in bytes within which the sharding fits."""
    return least_peak_bytes(_instances(ways, ways.curves.options), ways.static_bytes) + pending_bytes(
        ways, microbatches
    )


def _instances(ways: RematOptions, options: Options) -> list[Instance]:
    """The points of each segment, with gathered weights among the transients; alike segments share them."""
    made: dict[tuple[int, int], list[RematPoint]] = {}
    for index, found in enumerate(options):
        key = (id(found), ways.gathered[index])
        if key not in made:
            made[key] = [kept.with_transient(ways.gathered[index]) for kept in found]
    return [
        Instance(made[id(found), ways.gathered[index]], ways.gradients[index]) for index, found in enumerate(options)
    ]
