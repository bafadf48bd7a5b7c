"""What a plan makes one rank communicate in a step, collective by collective: the list a run is held to."""

from __future__ import annotations

from meshwright.capture.program import Program
from meshwright.cluster import Mesh, collective_s
from meshwright.layout import Collective
from meshwright.plan import Plan
from meshwright.price.buckets import parameter_collectives
from meshwright.price.flow import flow
from meshwright.price.weigh import count_collectives


def collectives_of(plan: Plan, program: Program) -> tuple[Collective, ...]:
    """In no particular order: every conversion and lowering of every segment, every gather and reduction."""
    found: list[Collective] = []
    micro = plan.microbatches
    for index, segment in enumerate(program.segments):
        graph = program.graph(segment).at(plan.microbatch)
        run = flow(graph, plan.choice(index), plan.stage_of(index).mesh, plan.common_layouts(program, index))
        carries = {op.name: any(value.grad for value in op.results) for op in graph.ops}
        values = graph.values()
        for name, made in run.strategies.items():
            found += made.collectives_forward * micro
            found += made.collectives_backward * micro if carries[name] else ()
        for step in run.moves.values():
            found += step.conversion.forward * micro
            found += step.conversion.backward * micro if values[step.value].grad else ()
    found += parameter_collectives(plan, program)
    found += count_collectives(plan, program)
    return tuple(found)


def accounted(plan: Plan, program: Program) -> Plan:
    """The plan with its collectives, and what they take, in its prediction."""
    found = collectives_of(plan, program)
    return plan.with_prediction(collectives=found, communication_s=communication_s(found, plan.mesh))


def communication_s(collectives: tuple[Collective, ...], mesh: Mesh) -> float:
    return sum(collective_s(item.kind, item.bytes, mesh.axis(item.axis)) for item in collectives)
