"""Transfers: the messages of a pipeline, values forward and gradients back."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from meshwright.capture.program import Program
from meshwright.errors import PlanError
from meshwright.plan import Plan
from meshwright.price.handover import Rate, hand_over_s, inner_rate, keeps_sent, rates
from meshwright.price.parameter import local_bytes
from meshwright.schedule import Pipeline
from meshwright.schedule.edges import Edge, Edges
from meshwright.simulate import Transfer


def rate_of(plan: Plan, source: int, target: int) -> Rate:
    if source == target:  # of two runs on the same devices
        return inner_rate(plan.groups[source][0].mesh)
    if not plan.links and not plan.cluster:  # a pipeline made by hand, on no cluster yet: what crosses is free
        return Rate(0.0, inf)
    found = rates(plan).get((source, target))
    if found is None:
        raise PlanError(f"no link from stage {source} to stage {target}", "one for all that exchange", "plan again")
    return found


def transfers(plan: Plan, program: Program, pipeline: Pipeline) -> dict[tuple[int, int, int], Transfer]:
    """Every message between stages by its slices. A gradient's reduction before it is sent is part of its message."""
    found: dict[tuple[int, int, int], Transfer] = {}
    for number in range(pipeline.stages):
        edges = Edges(plan, program, pipeline, number)
        for (segment, source, target), messages in edges.messages.items():
            if source != number:
                continue
            there, back = _Sums(), _Sums()
            for edge in messages:
                there.add(edge, rate_of(plan, source, target))
                if edge.value.grad:
                    back.add(edge, rate_of(plan, target, source), back=True)
            found[segment, source, target] = there.transfer(plan, source, target)
            found[segment, target, source] = back.transfer(plan, target, source)
    return found


def _ports(plan: Plan, source: int, target: int) -> tuple[str, ...]:
    """Resources that messages share: a stage's way out and another's way in, over links of the same rate."""
    rate = rate_of(plan, source, target).bandwidth
    return (f"out of {source} at {rate:.3g}", f"into {target} at {rate:.3g}")


@dataclass(slots=True)
class _Sums:
    seconds: float = 0.0
    sent: int = 0
    received: int = 0

    def add(self, edge: Edge, rate: Rate, back: bool = False) -> None:
        shape, size = edge.shape, edge.value.type.itemsize
        ends = [(form.stage.mesh, form.layout.reduced()) for form in (edge.source, edge.target)]
        source, target = reversed(ends) if back else ends
        self.seconds += hand_over_s(shape, size, source, target, rate)
        if back:
            self.seconds += edge.target.reduction(shape, size).backward_s
        self.sent += local_bytes(shape, size, source[1], source[0])
        self.received += local_bytes(shape, size, target[1], target[0])

    def transfer(self, plan: Plan, source: int, target: int) -> Transfer:
        links = _ports(plan, source, target) if self.seconds else ()
        return Transfer(self.seconds, 0.0, self.sent, self.received, links, keeps_sent(plan.groups[source][0].mesh))
