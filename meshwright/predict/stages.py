"""StagePredictions: seconds of a micro-batch, bytes, and times on the clock of a pipeline's stages."""

from __future__ import annotations

from dataclasses import replace

from meshwright.capture.program import Program
from meshwright.plan import Plan, Stage, StagePrediction
from meshwright.predict.costs import stage_costs
from meshwright.schedule import in_flight_of
from meshwright.simulate import Costs, SegmentCost, Timeline


def stage_predictions(plan: Plan, costs: Costs) -> tuple[StagePrediction, ...]:
    groups, found = plan.groups, []
    for number, group in enumerate(groups):
        own = [[costs.segments[i] for i in stage.segments] for stage in group]
        every = [cost for run in own for cost in run]
        sends = [_send_s(plan, costs, stage) for stage in group]
        known = plan.predicted.stages[number].in_flight if plan.predicted.stages else None
        schedule = "1f1b" if plan.schedule == "searched" else plan.schedule  # until it is found what it may hold
        flight = known or in_flight_of(schedule, number, len(groups), plan.microbatches, len(group))
        found.append(
            StagePrediction(
                tuple(sum(cost.forward_s for cost in run) for run in own),
                tuple(sum(cost.backward_input_s + cost.recompute_s for cost in run) for run in own),
                tuple(sum(cost.backward_weight_s for cost in run) for run in own),
                tuple(sends),
                flight,
                sum(cost.static_bytes for cost in every),
                sum(cost.resident_bytes for cost in every),
                max(max(cost.forward_transient_bytes, cost.backward_transient_bytes) for cost in every),
                0,
                0.0,
                0.0,
                0.0,
            )
        )
    return tuple(found)


def _send_s(plan: Plan, costs: Costs, stage: Stage) -> float:
    own = plan.stage_at(stage.mesh.ranks[0])
    return sum(
        transfer.seconds + transfer.latency_s
        for (segment, source, target), transfer in costs.transfers.items()
        if segment in stage.segments and source == own and target != own
    )


def held_bytes(plan: Plan, program: Program) -> list[int]:
    """Rough bytes of each physical stage, without playing it: state, and activations in flight."""
    own = [stage_costs(plan, program, number, exact=False) for number in range(len(plan.stages))]
    costs = Costs([cost for run in own for cost in run], {})
    stages = stage_predictions(plan, costs)
    return [one.static_bytes + one.resident_bytes * one.in_flight // len(one.forward_s) for one in stages]


def stage_figures(plan: Plan, costs: Costs, timeline: Timeline) -> dict[str, object]:
    """Prediction figures of a pipeline: seconds of the busiest stage, bytes of the fullest one."""
    stages = tuple(
        replace(
            stage,
            peak_bytes=times.peak_bytes,
            busy_s=times.busy_s,
            exposed_s=times.exposed_s,
            bubble_s=times.bubble_s,
            launch_s=times.launch_s,
        )
        for stage, times in zip(plan.predicted.stages, timeline.stages, strict=True)
    )
    busiest = max(range(len(stages)), key=lambda i: stages[i].busy_s)
    fullest = max(stages, key=lambda stage: stage.peak_bytes)
    own: list[SegmentCost] = [costs.segments[i] for stage in plan.groups[busiest] for i in stage.segments]
    micro, static = plan.microbatches, min(fullest.static_bytes, fullest.peak_bytes)
    held = fullest.resident_bytes * fullest.in_flight // len(fullest.forward_s)
    held = min(held, fullest.peak_bytes - static)  # gradients come when some of it is gone: of the peak, the parts
    return {
        "step_s": timeline.step_s,
        "forward_s": micro * sum(cost.forward_s for cost in own),
        "backward_s": micro * sum(cost.backward_s + cost.recompute_s for cost in own),
        "parameters_s": sum(cost.gather_params_s + cost.reduce_grads_s for cost in own),
        "optimizer_s": sum(cost.update_s for cost in own),
        "static_bytes": static,
        "resident_bytes": held,
        "transient_bytes": fullest.peak_bytes - static - held,
        "peak_bytes": fullest.peak_bytes,
        "stages": stages,
        "bubble": timeline.bubble,
        "host_bytes": max(
            sum(costs.segments[i].state_bytes for stage in group for i in stage.segments) for group in plan.groups
        ),
    }
