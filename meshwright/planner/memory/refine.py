"""A sharding made to fit: what each instance keeps, recomputes and chunks, chosen exactly on its traced pairs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from meshwright.capture.program import Program
from meshwright.plan import FrontierPoint, Plan, Prediction
from meshwright.planner.effort import RETRIES
from meshwright.planner.memory.instances import Instance, least_peak_bytes, solve_instances
from meshwright.planner.memory.options import RematOptions
from meshwright.planner.memory.plans import with_kept
from meshwright.predict import predicted
from meshwright.price.overlap import pending_grad_bytes
from meshwright.remat.curve import RematPoint
from meshwright.remat.inner import CHUNKS

Options = Sequence[Sequence[RematPoint]]


@dataclass(frozen=True, slots=True)
class FittedRemat:
    """One way per instance, and the step that makes."""

    picked: list[RematPoint]
    predicted: Prediction

    def written(self, plan: Plan, program: Program) -> Plan:
        return predicted(replace(with_kept(plan, self.picked), predicted=self.predicted), program)


def refine(
    plan: Plan, program: Program, budget_bytes: int, chunks: tuple[int, ...] = CHUNKS, flat: bool = False
) -> Plan | None:
    """The plan with its sharding as it is, recomputing what it must to fit; None where even that does not fit. chunks:
    in which backwards of inner segments may run; each has to be traced. flat: nothing waits on the host."""
    if plan.predicted.static_bytes > budget_bytes:
        return None
    ways = RematOptions.of(plan, program, chunks)
    return refine_ways(plan, program, ways, budget_bytes, ways.curves.options if flat else None)


def refine_ways(
    plan: Plan, program: Program, ways: RematOptions, budget_bytes: int, options: Options | None = None
) -> Plan | None:
    """`refine`, with these ways to run the segments. options: what each may do, all of its ways unless given; values
    may wait on the host then, where the device's link to it is known."""
    found = fit_ways(plan, ways, budget_bytes, options)
    return found.written(plan, program) if found else None


def fit_ways(plan: Plan, ways: RematOptions, budget_bytes: int, options: Options | None = None) -> FittedRemat | None:
    """`refine_ways`, not in writing."""
    best: FittedRemat | None = None
    for late in _lates(plan, ways, options):
        for _ in range(RETRIES):  # with the gradients that really wait: those of longer backwards are fewer
            picked = _picked(ways, budget_bytes - late, options)
            predicted = ways.predicted(picked, plan.microbatches) if picked else None
            if picked is None or predicted is None or predicted.peak_bytes > budget_bytes:
                break
            if best is None or predicted.step_s < best.predicted.step_s:
                best = FittedRemat(picked, predicted)
            fewer = pending_grad_bytes([ways.point(i, kept) for i, kept in enumerate(picked)], plan.microbatches)
            if fewer >= late:
                break
            late = fewer
        if best is not None:
            return best
    return None


def fit_as(
    plan: Plan, ways: RematOptions, budget_bytes: int, options: Options, points: Sequence[FrontierPoint]
) -> FittedRemat | None:
    """With what these points keep, of these options; None where that does not fit."""
    picked = []
    for offered, point in zip(options, points, strict=True):
        wanted = (point.choice.recompute, point.choice.keep, point.choice.chunks)
        same = [kept for kept in offered if (kept.recompute, kept.keep, kept.chunks) == wanted and not kept.offload]
        if not same:
            return None
        picked.append(same[0])
    predicted = ways.predicted(picked, plan.microbatches)
    return FittedRemat(picked, predicted) if predicted.peak_bytes <= budget_bytes else None


def _lates(plan: Plan, ways: RematOptions, options: Options | None) -> Iterator[int]:
    """What waits for its reduction where all is kept, and where as much as can be is recomputed."""
    found = late_of(ways, plan.microbatches)
    yield found
    if found:
        offered = ways.curves.options if options is None else options
        longest = [ways.point(i, max(kept, key=lambda one: one.seconds)) for i, kept in enumerate(offered)]
        fewest = pending_grad_bytes(longest, plan.microbatches)
        if fewest < found:
            yield fewest


def _picked(ways: RematOptions, room_bytes: int, options: Options | None) -> list[RematPoint] | None:
    """The fastest ways within so many bytes."""
    offered = ways.curves.options if options is None else options
    chosen = solve_instances(_instances(ways, offered), room_bytes, ways.static_bytes)
    least_s = sum(min(kept.seconds for kept in found) for found in offered)
    if options is None and (chosen is None or chosen.seconds > least_s):
        for wider in ways.curves.wider():
            aside = wider.static_bytes - ways.curves.static_bytes
            other = solve_instances(_instances(ways, wider.options), room_bytes - aside, ways.static_bytes)
            if other is not None and (chosen is None or other.seconds < chosen.seconds):
                chosen, offered = other, wider.options
    if chosen is None:
        return None
    return [found[number] for found, number in zip(offered, chosen.options, strict=True)]


def late_of(ways: RematOptions, microbatches: int) -> int:
    """Gradients that wait for their reduction; no more wait where backward takes longer."""
    return pending_grad_bytes(ways.points, microbatches)


def least_peak(ways: RematOptions, microbatches: int) -> int:
    """The smallest budget in which the sharding fits, everything recomputed that can be."""
    return least_peak_bytes(_instances(ways, ways.curves.options), ways.static_bytes) + late_of(ways, microbatches)


def _instances(ways: RematOptions, options: Options) -> list[Instance]:
    """What each segment may keep, with the weights it gathers too; those that are alike share it."""
    made: dict[tuple[int, int], list[RematPoint]] = {}
    for index, found in enumerate(options):
        key = (id(found), ways.gathered[index])
        if key not in made:
            made[key] = [ways.with_weights(index, kept) for kept in found]
    return [
        Instance(made[id(found), ways.gathered[index]], ways.gradients[index]) for index, found in enumerate(options)
    ]
