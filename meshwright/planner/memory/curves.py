"""Rematerialisation of a fixed sharding: what every instance keeps, recomputes, chunks and offloads within a budget.

Each distinct sharded segment has a Pareto frontier of points (`remat.curve`), the last one with its chunks as well.
`solve_instances` then chooses a point for every instance. On one device that is the whole plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from meshwright.capture.program import Program, SegmentGraph
from meshwright.cluster import Device
from meshwright.cost.host_link import Copies, copies_of
from meshwright.cost.traced.nodes import NodeCosts
from meshwright.errors import PlanError
from meshwright.generate.joint import label
from meshwright.generate.program import sharded_segments
from meshwright.pins.methods import FIXED, ORDERED, check_method
from meshwright.plan import Choice, Plan
from meshwright.plan.units import show_bytes, show_enough
from meshwright.planner.effort import FEW, MOST_UNITS, NEAR
from meshwright.planner.infeasible.min_memory import smallest_budget
from meshwright.planner.infeasible.refusals import NoRoomError
from meshwright.planner.memory.instances import Chosen, Instance, least_peak_bytes, peak_of, solve_instances
from meshwright.planner.memory.methods import fixed_ways, order_by
from meshwright.planner.memory.plans import with_kept
from meshwright.predict import predicted
from meshwright.predict.one_stage import static_bytes
from meshwright.remat.chained import Chained
from meshwright.remat.curve import RematPoint, kept_curve, undominated
from meshwright.remat.inner import CHUNKS, inner_options
from meshwright.remat.offload import away_options
from meshwright.remat.tail import tail_options
from meshwright.remat.traced import Tracer, traced_for
from meshwright.remat.way import cut_way


@dataclass(frozen=True, slots=True)
class Curves:
    """The rematerialisation points that a plan may choose from.

    options: of each instance; alike instances share the object.
    gradients: bytes per instance, of the parameters that no later one has.
    static_bytes: in memory during the whole step: parameters, optimizer, batch, shared values.
    offload_options: of each instance, points that offload; empty where the link to the host is not known.
    fused: the pairs of forward and backward will be compiled.
    """

    plan: Plan
    program: Program
    options: tuple[tuple[RematPoint, ...], ...]
    gradients: tuple[int, ...]
    static_bytes: int
    offload_options: tuple[tuple[RematPoint, ...], ...] = ()
    fused: bool = False

    def instances(self) -> list[Instance]:
        return [Instance(kept, size) for kept, size in zip(self.options, self.gradients, strict=True)]

    @property
    def least_bytes(self) -> int:
        """No choice needs less; at the step all gradients are there."""
        return max(least_peak_bytes(self.instances(), self.static_bytes), self.static_bytes + sum(self.gradients))

    def peak_of(self, picked: Sequence[RematPoint]) -> int:
        """The most bytes in use where instances run in these ways."""
        chosen = [Instance((kept,), size) for kept, size in zip(picked, self.gradients, strict=True)]
        return max(peak_of(chosen, [0] * len(chosen), self.static_bytes), self.static_bytes + sum(self.gradients))

    def priced(self, index: int, choice: Choice) -> RematPoint:
        """The point of this instance that a Choice names. Raises PlanError where it has none of so many chunks."""
        key = (choice.recompute, choice.keep, choice.chunks, choice.offload)
        for kept in (*self.options[index], *(self.offload_options[index] if self.offload_options else ())):
            if (kept.recompute, kept.keep, kept.chunks, kept.offload) == key:
                return kept
        if choice.chunks == 1 and not choice.offload:
            return self._measured(index, choice)
        raise PlanError(
            f"layer {self.program.segments[index].name} recomputes {list(choice.recompute)} and keeps "
            f"{list(choice.keep)} in {choice.chunks} chunks",
            f"one of its {len(self.options[index])} ways between keeping all and recomputing all",
            "undo the edit, or plan again",
        )

    def _measured(self, index: int, choice: Choice) -> RematPoint:
        """A point that is not on the frontier."""
        device = self.plan.mesh.device
        joint = traced_for(device)(sharded_segments(self.program, self.plan)[index])
        return cut_way(joint, NodeCosts(device, self.fused, self.plan.mesh), choice.recompute, choice.keep)

    def fixed(self, method: str) -> list[RematPoint]:
        """The point of every instance under a method that does not depend on the limit."""
        return fixed_ways(self.program, self.plan, self.options, method, self.fused)

    def within(self, budget_bytes: int | None, method: str = "auto") -> Plan:
        """The fastest plan within the budget. Raises PlanError with the fewest bytes that would do.

        budget_bytes: None is all usable memory of the device.
        """
        check_method(f"method {method!r}", method)
        budget = budget_bytes if budget_bytes is not None else self.plan.mesh.device.usable_bytes
        found = self.find(budget, budget_bytes, method)
        if found is None:
            least, how = self.least(method, budget)
            raise NoRoomError(
                f"no plan with recompute={method} fits in {show_bytes(budget)} on one device",
                f"{least:,} bytes ({show_enough(least)}) are enough{how}",
                "raise the limit or make the batch smaller",
                least,
            )
        return found

    def find(self, budget: int, budget_bytes: int | None, method: str, nest: bool = True) -> Plan | None:
        """The fastest plan within the budget; None where there is none.

        budget_bytes: the user's limit, for the plan.
        nest: with method auto, segments may run forward more than once.
        """
        if method in FIXED:
            return self._fixed(method, budget, budget_bytes)
        fits = self.static_bytes + sum(self.gradients) <= budget
        flatly = fits and method not in ORDERED
        found = solve_instances(self.instances(), budget, self.static_bytes) if flatly else None
        flat = with_chosen(self, found, budget_bytes) if found else None
        if fits and method == "auto" and self.offload_options and (found is None or found.seconds > self.fastest_s):
            flat, found = self._offloading(budget, budget_bytes, flat, found)
        if fits and (method in ORDERED or (nest and method == "auto" and self._may_nest(found))):
            room = budget - self.static_bytes
            order = order_by(self.chained(), method if method in ORDERED else "nested", room)
            fitting = order is not None and order.peak_bytes <= room
            if order is not None and fitting and (found is None or order.seconds < found.seconds):
                steps = tuple(f"{kind} {index}" for kind, index in order.steps)
                return self.written(order.picked, budget_bytes, order.seconds - self.fastest_s, steps)
        return flat

    def written(
        self, picked: Sequence[RematPoint], budget_bytes: int | None, slower_s: float, order: tuple[str, ...] = ()
    ) -> Plan:
        """The plan with these points, and its gap.

        slower_s: seconds above a bound on all plans, per micro-batch.
        """
        plan = replace(with_kept(self.plan, picked), memory_bytes=budget_bytes, order=order, compile=self.fused)
        plan = predicted(plan, self.program)
        step_s = plan.predicted.step_s
        return plan.with_prediction(gap=self.plan.microbatches * slower_s / step_s if step_s else 0.0)

    def _fixed(self, method: str, budget: int, given: int | None) -> Plan | None:
        picked = self.fixed(method)
        peak = self.peak_of(picked)
        if peak > budget:
            return None
        seconds = sum(kept.seconds for kept in picked)
        options = tuple((kept,) for kept in picked)
        return with_chosen(replace(self, options=options), Chosen((0,) * len(picked), seconds, peak, seconds), given)

    def _offloading(
        self, budget: int, given: int | None, flat: Plan | None, found: Chosen | None
    ) -> tuple[Plan | None, Chosen | None]:
        """The fastest plan with offloading, if it is faster than the one found."""
        for curves in self.with_offload():
            chosen = solve_instances(curves.instances(), budget, curves.static_bytes)
            if chosen is not None and (found is None or chosen.seconds < found.seconds):
                flat, found = with_chosen(curves, chosen, given), chosen
        return flat, found

    def with_offload(self) -> Iterator[Curves]:
        """The curves with points that offload, and static room for the largest value in transfer."""
        if not self.offload_options:
            return
        sizes = sorted({kept.offloaded_bytes for ways in self.offload_options for kept in ways})
        for aside in dict.fromkeys((sizes[-1], sizes[len(sizes) // 2])) if sizes else ():
            options = tuple(
                (*ways, *(kept for kept in more if kept.offloaded_bytes <= aside))
                for ways, more in zip(self.options, self.offload_options, strict=True)
            )
            yield replace(self, options=options, static_bytes=self.static_bytes + aside)

    def least(self, method: str, refused: int) -> tuple[int, str]:
        """(the smallest budget that has a plan, what that plan does besides recomputing, as the end of a sentence).

        refused: a budget in bytes that has none.
        By `auto` nested orders are not searched for their smallest budget where segments are many.
        """
        if method in FIXED:
            return self.peak_of(self.fixed(method)), ""
        if method == "sqrt":
            order = order_by(self.chained(), "sqrt", 0)
            return self.static_bytes + max(order.peak_bytes if order else 0, sum(self.gradients)), ""
        least = flat = self.least_bytes
        static, segments = self.static_bytes, len(self.options)
        low = max(0, refused - static, sum(self.gradients) - 1)
        if method in ORDERED or (method == "auto" and segments <= 2 * FEW and low < flat - static):
            chained, order_method = self.chained(), "nested" if method == "auto" else method

            def fits(room: int) -> bool:
                flatly = method == "auto" and static + room >= flat
                return flatly or order_by(chained, order_method, room) is not None

            least = static + smallest_budget(fits, low, max(low + 1, flat - static), segments)
        offloading = min((curves.least_bytes for curves in self.with_offload()), default=flat)
        if method != "auto" or flat <= min(least, offloading):
            return least, ""
        waiting, nested = ", values wait on the host", ", layers run forward more than once"
        return (offloading, waiting) if offloading <= least else (least, nested)

    def chained(self) -> Chained:
        """The chain for a search of nested orders."""
        traced = traced_for(self.plan.mesh.device)
        return Chained.of(self.program, self.plan, self.options, self.gradients, traced)

    @property
    def fastest_s(self) -> float:
        """Seconds of forward and backward with unlimited memory."""
        return sum(min(kept.seconds for kept in options) for options in self.options)

    def _may_nest(self, found: Chosen | None) -> bool:
        """Whether a nested order is worth its search: nothing else fits, or what fits recomputes much."""
        return found is None or (len(self.options) <= MOST_UNITS and found.seconds > (1 + NEAR) * self.fastest_s)


def with_chosen(found: Curves, chosen: Chosen, budget_bytes: int | None) -> Plan:
    picked = [options[index] for options, index in zip(found.options, chosen.options, strict=True)]
    return found.written(picked, budget_bytes, chosen.seconds - chosen.bound_s)


def curves(
    program: Program,
    plan: Plan,
    device: Device,
    *,
    fused: bool = False,
    copies: Copies | None = None,
    chunks: tuple[int, ...] = CHUNKS,
) -> Curves:
    """The Pareto frontiers of a plan's segments.

    device: its kind decides which kernels run.
    fused: the pairs of forward and backward will be compiled.
    copies: bandwidths to and from the host's memory; the device's own if not given.
    chunks: numbers of chunks in which the backward of an inner segment may run.
    """
    costs = NodeCosts(device, fused, plan.mesh)
    traced = traced_for(device)
    segments = sharded_segments(program, plan)
    first = {number: kept_curve(traced(graph), costs) for number, graph in {id(one): one for one in segments}.items()}
    made: dict[tuple[int, bool, tuple[str, ...]], tuple[RematPoint, ...]] = {}
    options = []
    given = _held_inputs(program, segments, first)
    for index, graph in enumerate(segments):
        last = index == len(segments) - 1
        if (id(graph), last, given[index]) not in made:
            held = (*_held_outputs(program, segments, first, graph), *given[index])
            found = first[id(graph)]
            if any(name in kept.saved for kept in found for name in held):
                found = kept_curve(traced(graph), costs, held)
            if last:
                extra = tail_options(program, plan, graph, costs, traced)
            else:
                extra = list(inner_options(program, plan, index, graph, found, costs, traced, chunks))
            made[id(graph), last, given[index]] = undominated((*found, *extra))
        options.append(made[id(graph), last, given[index]])
    static, gradients = static_bytes(plan, program)
    copies = copies or copies_of(device)
    offload_options = _offload_options(program, segments, options, traced, copies) if copies else ()
    return Curves(plan, program, tuple(options), tuple(gradients), static, offload_options, fused)


def _offload_options(
    program: Program,
    segments: Sequence[SegmentGraph],
    options: list[tuple[RematPoint, ...]],
    traced: Tracer,
    copies: Copies,
) -> tuple[tuple[RematPoint, ...], ...]:
    """Of each instance, its points with some saved values on the host; a value that two segments keep stays."""
    shared: set[str] = set()
    for segment, graph, ways in zip(program.segments, segments, options, strict=True):
        pairs = zip(segment.outputs, graph.outputs, strict=True)
        shared |= {name for name, local in pairs if any(local in kept.saved for kept in ways)}
    found: list[tuple[RematPoint, ...]] = []
    made: dict[object, tuple[RematPoint, ...]] = {}
    for index, (segment, graph) in enumerate(zip(program.segments[:-1], segments[:-1], strict=True)):
        inputs = [(label(value.name), name) for value, name in zip(graph.inputs, segment.inputs, strict=True)]
        many = {name for other in program.segments[index + 1 :] for name in other.inputs}
        stays = (*graph.outputs, *(local for local, name in inputs if name in shared or name in many))
        key = (id(graph), id(options[index]), id(options[index + 1]), stays)
        if key not in made:
            made[key] = tuple(away_options(traced(graph), options[index], options[index + 1], copies, stays))
        found.append(made[key])
    return (*found, ())


def _held_outputs(
    program: Program, segments: Sequence[SegmentGraph], first: dict[int, tuple[RematPoint, ...]], graph: SegmentGraph
) -> tuple[str, ...]:
    """Outputs that the next segment keeps under every point, after each instance of this graph."""
    found = set(graph.outputs)
    for index, other in enumerate(segments):
        if other is not graph:
            continue
        names = dict(zip(program.segments[index].outputs, graph.outputs, strict=True))
        after = program.segments[index + 1] if index + 1 < len(segments) else None
        local = zip(segments[index + 1].inputs, after.inputs, strict=True) if after is not None else ()
        always = {
            names[name] for value, name in local if name in names and _always(first, segments[index + 1], value.name)
        }
        found &= always
    return tuple(sorted(found))


def _held_inputs(
    program: Program, segments: Sequence[SegmentGraph], first: dict[int, tuple[RematPoint, ...]]
) -> list[tuple[str, ...]]:
    """Of each instance, inputs that an earlier one keeps under every point, so until after this one's backward.

    An encoder's output, which every decoder layer reads, is in memory once.
    """
    found: list[tuple[str, ...]] = []
    kept: set[str] = set()
    for segment, graph in zip(program.segments, segments, strict=True):
        inputs = [(label(value.name), name) for value, name in zip(graph.inputs, segment.inputs, strict=True)]
        found.append(tuple(local for local, name in inputs if name in kept))
        kept |= {name for local, name in inputs if _always(first, graph, local)}
    return found


def _always(first: dict[int, tuple[RematPoint, ...]], graph: SegmentGraph, name: str) -> bool:
    return all(name in kept.saved for kept in first[id(graph)])
