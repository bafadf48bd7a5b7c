"""A plan's FrontierPoints and its prediction, made from the plan alone: op by op on the unfolded program.

What recomputing adds is counted on the traced pairs: the seconds of the chosen cut beside those of the cut that keeps
all, the bytes that it keeps, and the peaks of its halves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from meshwright.capture.program import Program
from meshwright.plan import Choice, FrontierPoint, ParameterPlan, Plan, Prediction
from meshwright.price.overlap import late_bytes, overlapped
from meshwright.price.parameter import Setting, chain_uses
from meshwright.price.segment import parameter_prices, price_segment
from meshwright.profile.spared import spared_segments
from meshwright.remat.curve import Kept
from meshwright.remat.inner import CHUNKS
from meshwright.solve.memory.curves import Curves, curves
from meshwright.solve.memory.plan import with_choices


def setting_of(plan: Plan) -> Setting:
    return Setting(plan.optimizer, plan.precision, plan.microbatches, compile=plan.compile)


def plan_points(plan: Plan, program: Program) -> list[FrontierPoint]:
    """What every segment costs under the plan, each run forward once; `ordered` says what an order adds."""
    if not plan.recomputes:
        return keeping_all(plan, program)
    found = Ways.of(plan, program)
    return [found.point(i, kept) for i, kept in enumerate(found.picked(plan))]


def keeping_all(plan: Plan, program: Program) -> list[FrontierPoint]:
    """As if every segment kept what autograd keeps; those that are alike are priced once."""
    known: dict[object, FrontierPoint] = {}
    found = []
    for index, segment in enumerate(program.segments):
        parameters, charged = _parameters(plan, program, index)
        key = (plan.segments[index], tuple(parameters.items()), tuple(charged.items()))
        if key not in known:
            graph = program.graph(segment).at(plan.microbatch)
            known[key] = price_segment(graph, plan.choice(index), parameters, plan.mesh, setting_of(plan), charged)
        found.append(known[key])
    return found


@dataclass(frozen=True, slots=True)
class Ways:
    """What each segment of a sharded plan may keep, and its point when it does. gathered: bytes of weights beside."""

    points: list[FrontierPoint]
    gathered: list[int]
    curves: Curves

    @classmethod
    def of(cls, plan: Plan, program: Program, chunks: tuple[int, ...] = CHUNKS) -> Ways:
        """chunks: in which backwards of inner segments may run."""
        every = range(len(program.segments))
        bare = with_choices(plan, [_bare(plan.choice(i)) for i in every])
        gathered = []
        for index, segment in enumerate(program.segments):
            prices = parameter_prices(
                program.graph(segment), *_parameters(plan, program, index), plan.mesh, setting_of(plan)
            )
            gathered.append(sum(price.transient_bytes for price in prices))
        return cls(keeping_all(bare, program), gathered, curves(program, bare, plan.mesh.device, chunks=chunks))

    def picked(self, plan: Plan) -> list[Kept]:
        """The ways that a plan's choices name."""
        return [self.curves.priced(index, plan.choice(index)) for index in range(len(self.points))]

    def predicted(self, picked: Sequence[Kept], microbatches: int) -> Prediction:
        """Of a plan that runs so, every segment forward once; with room for the largest value that leaves."""
        points = [self.point(index, kept) for index, kept in enumerate(picked)]
        found, aside = prediction(points, microbatches, exact_peak=True), max(kept.away_bytes for kept in picked)
        return replace(found, peak_bytes=found.peak_bytes + aside, transient_bytes=found.transient_bytes + aside)

    @property
    def static_bytes(self) -> int:
        return sum(point.static_bytes for point in self.points)

    def beside_weights(self, index: int, kept: Kept) -> Kept:
        """The same with the gathered weights among its transients."""
        more = self.gathered[index]
        return replace(
            kept,
            forward_transient_bytes=kept.forward_transient_bytes + more,
            backward_transient_bytes=kept.backward_transient_bytes + more,
        )

    def point(self, index: int, kept: Kept) -> FrontierPoint:
        point, found = self.points[index], self.beside_weights(index, kept)
        more_s = max(0.0, kept.seconds - self.curves.options[index][0].seconds)
        return replace(
            point,
            choice=replace(
                point.choice, recompute=kept.recompute, keep=kept.keep, chunks=kept.chunks, offload=kept.offload
            ),
            backward_input_s=point.backward_input_s + more_s,
            resident_bytes=found.resident_bytes,
            forward_transient_bytes=found.forward_transient_bytes,
            backward_transient_bytes=found.backward_transient_bytes,
        )


def _bare(choice: Choice) -> Choice:
    """The same where all is kept."""
    return replace(choice, recompute=(), keep=(), chunks=1, offload=())


def _parameters(plan: Plan, program: Program, index: int) -> tuple[dict[str, ParameterPlan], dict[str, float]]:
    """By local name: what was decided for each, and of those that count here how many segments use them."""
    segment = program.segments[index]
    pairs = [(v.name, name) for v, name in zip(program.graphs[segment.graph].params, segment.params, strict=True)]
    count, micro, spared = len(program.segments), plan.microbatches, spared_segments(program)
    users = {local: found for local, name in pairs if (found := program.uses_of(name))[0] == index}
    charged = {local: chain_uses(found, count, micro, spared) for local, found in users.items()}
    return {local: plan.parameters[name] for local, name in pairs}, charged


def prediction(points: Sequence[FrontierPoint], microbatches: int, exact_peak: bool) -> Prediction:
    """Of a plan of one stage, its collectives and gap yet to come.

    exact_peak: the transients are those of traced pairs, so what later segments will keep counts only once they run.
    Otherwise everything held counts at every moment.
    """
    static = sum(point.static_bytes for point in points)
    resident = sum(point.resident_bytes for point in points)
    peak = static + resident + max(point.transient_bytes for point in points)
    if exact_peak:
        held = accumulate(point.resident_bytes for point in points)
        peak = static + max(before + point.transient_bytes for before, point in zip(held, points, strict=True))
    peak += late_bytes(points, microbatches)
    alone_s, step_s = sum(point.seconds(microbatches) for point in points), overlapped(points, microbatches)
    return Prediction(
        step_s=step_s,
        forward_s=microbatches * sum(point.forward_s for point in points),
        backward_s=microbatches * sum(point.backward_s for point in points),
        parameters_s=sum(point.first_s + point.last_s for point in points),
        communication_s=0.0,
        optimizer_s=sum(point.step_s for point in points),
        static_bytes=static,
        resident_bytes=resident,
        transient_bytes=max(0, peak - static - resident),
        peak_bytes=peak,
        gap=0.0,
        hidden_s=max(0.0, alone_s - step_s),
        host_s=max(0.0, step_s - alone_s),
    )
