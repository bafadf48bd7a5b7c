"""`predict`: the Prediction of a plan, by playing its Instructions with costs made from the plan and its program.

No other code makes a plan's Prediction. A plan of one stage is played as a list of one stage.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from meshwright.caches import CACHES
from meshwright.capture.program import Program
from meshwright.plan import Plan, Prediction
from meshwright.plan.order import parse_order, passes_of
from meshwright.predict import stage_traffic, traffic
from meshwright.predict.chosen import chosen_ways, passing_ways
from meshwright.predict.costs import plan_costs
from meshwright.predict.one_stage import one_stage_costs
from meshwright.predict.stages import stage_figures, stage_predictions
from meshwright.price.segment import collectives_s
from meshwright.remat.chained import Chained, Nested, played
from meshwright.remat.traced import traced_for
from meshwright.schedule import plan_lists, plan_pipeline
from meshwright.schedule.of_plan import plan_messages, with_tasks
from meshwright.simulate import Costs, Timeline, simulate

MOST_LISTED = 128
"""Ranks up to which a plan lists what each stage communicates."""


@dataclass(frozen=True, slots=True)
class Played:
    """plan: with the tasks of a searched schedule and the predictions of its stages."""

    plan: Plan
    costs: Costs
    timeline: Timeline


def play(plan: Plan, program: Program, *, exact: bool = True, overlap: bool = True, spans: bool = False) -> Played:
    """One step of the plan on the clock.

    exact: bytes of a pipeline are read off traced pairs; searches do without.
    overlap: gathers and reductions overlap compute, as they do when the plan is run.
    """
    if len(plan.stages) == 1:
        costs = replace(one_stage_costs(plan, program), overlap=overlap)
        return Played(plan, costs, simulate(plan_lists(plan, program), costs, spans=spans))
    pipeline = plan_pipeline(plan, program)
    costs = plan_costs(plan, program, pipeline, exact, overlap)
    scheduled = with_tasks(plan.with_prediction(stages=stage_predictions(plan, costs)), pipeline)
    messages = plan_messages(scheduled, pipeline)
    timeline = simulate(plan_lists(scheduled, program), costs, spans=spans, messages=messages)
    return Played(scheduled, costs, timeline)


def predict(plan: Plan, program: Program) -> Prediction:
    """The Prediction of any plan, with the plan's own gap."""
    return predicted(plan, program).predicted


def predicted(plan: Plan, program: Program, listed: bool = True) -> Plan:
    """The plan with its Prediction, and with the order of a searched schedule. listed: with its collectives."""
    if len(plan.stages) > 1:
        made = pipeline_predicted(plan, program)[0]
        return _listed(made, program) if listed else made
    one = play(plan, program)
    found = _one_stage(plan, program, one)
    if not listed:
        return replace(plan, predicted=found)
    collectives = traffic.collectives_of(plan, program)
    spent_s = collectives_s(collectives, plan.mesh)
    return replace(plan, predicted=replace(found, collectives=collectives, communication_s=spent_s))


_last: list[tuple[Plan, Program, Timeline]] = CACHES.own([])


def pipeline_predicted(plan: Plan, program: Program, exact: bool = True) -> tuple[Plan, Timeline]:
    """A pipeline with its Prediction, without collectives. The last exact prediction is remembered."""
    for known, of, played_before in _last if exact else ():
        if of is program and _as_requested(known, plan) == plan:
            return _as_requested(known, plan), played_before
    found = play(plan, program, exact=exact)
    figures = stage_figures(found.plan, found.costs, found.timeline)
    made = found.plan.with_prediction(**figures)
    if exact:
        _last[:] = [(made, program, found.timeline)]
    return made, found.timeline


def _as_requested(plan: Plan, by: Plan) -> Plan:
    """The plan with the model, budget and pins of another, on which predictions do not depend."""
    return replace(
        plan, model=by.model, memory_bytes=by.memory_bytes, headroom=by.headroom, pins=by.pins, cluster=by.cluster
    )


def _listed(plan: Plan, program: Program) -> Plan:
    """The prediction with the collectives of each stage, and the seconds of the busiest stage's."""
    if plan.world_size > MOST_LISTED:
        return plan
    listed = [stage_traffic.stage_traffic(plan, program, number) for number in range(len(plan.groups))]
    stages = [replace(stage, traffic=own) for stage, own in zip(plan.predicted.stages, listed, strict=True)]
    busiest = max(range(len(stages)), key=lambda i: stages[i].busy_s)
    spent_s = stage_traffic.communication_s(plan, busiest, listed[busiest])
    return plan.with_prediction(stages=tuple(stages), communication_s=spent_s)


def _one_stage(plan: Plan, program: Program, found: Played) -> Prediction:
    rows, micro, timeline = found.costs.segments, plan.microbatches, found.timeline
    passes = [passes_of(plan.order, index) for index in range(len(rows))]
    forward_s = micro * sum(row.forward_s for row in rows)
    backward_s = micro * sum(row.backward_s + count * row.forward_s for row, count in zip(rows, passes, strict=True))
    parameters_s, step_s = (
        sum(row.gather_params_s + row.reduce_grads_s for row in rows),
        sum(row.update_s for row in rows),
    )
    alone_s, times = forward_s + backward_s + parameters_s + step_s, timeline.stages[0]
    static, resident, peak = times.static_bytes, sum(row.resident_bytes for row in rows), times.peak_bytes
    if plan.order:
        held = _nested(plan, program, found.costs)
        resident, peak = held.held_bytes, max(static + held.peak_bytes, static + sum(r.gradient_bytes for r in rows))
    resident = min(resident, peak - static)
    return Prediction(
        step_s=timeline.step_s,
        forward_s=forward_s,
        backward_s=backward_s,
        parameters_s=parameters_s,
        communication_s=0.0,
        optimizer_s=step_s,
        static_bytes=static,
        resident_bytes=resident,
        transient_bytes=peak - static - resident,
        peak_bytes=peak,
        gap=plan.predicted.gap,
        hidden_s=max(0.0, alone_s - (timeline.step_s - times.host_s)),
        host_s=times.host_s,
        host_bytes=sum(row.state_bytes + row.offloaded_bytes for row in rows),
    )


def _nested(plan: Plan, program: Program, costs: Costs) -> Nested:
    """The peak of a nested order. Each run of a layer holds gathered or cast copies of its weights too."""
    chosen = [one.way for one in chosen_ways(plan, program)]
    copies = [
        row.forward_transient_bytes - one.forward_transient_bytes
        for row, one in zip(costs.segments, chosen, strict=True)
    ]
    ways = [way.with_transient(size) for way, size in zip(chosen, copies, strict=True)]
    passing = [way.with_transient(size) for way, size in zip(passing_ways(plan, program), copies, strict=True)]
    options = list(zip(ways, passing, strict=True))
    gradients = [row.gradient_bytes for row in costs.segments]
    chained = Chained.of(program, plan, options, gradients, traced_for(plan.mesh.device))
    return played(chained, parse_order(plan.order, len(ways)), ways)
