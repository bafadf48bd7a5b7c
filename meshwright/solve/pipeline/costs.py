"""What the segments and messages of a pipeline cost, from its plan alone."""

from __future__ import annotations

from dataclasses import dataclass, replace

from meshwright.caches import CACHES
from meshwright.capture.program import Program
from meshwright.cluster import Mesh
from meshwright.errors import PlanError
from meshwright.layout import Layout
from meshwright.plan import FrontierPoint, ParameterPlan, Plan, Stage
from meshwright.price.handover import Rate, hand_over_s, inner_rate, keeps_sent, rates
from meshwright.price.parameter import local_bytes
from meshwright.price.segment import parameter_prices, price_segment
from meshwright.price.tied_replica import TiedReplicaPrice, gradient_bytes, tied_replica_price
from meshwright.remat.curve import Kept
from meshwright.schedule import Pipeline
from meshwright.schedule.edges import Edge, Edges, whole
from meshwright.simulate import Costs, SegmentCost, Transfer
from meshwright.solve.pipeline.meshes import stand_in
from meshwright.solve.pipeline.offers import per_microbatch
from meshwright.solve.pipeline.ways import bare, kept_point, model_of, stage_ways, way_of
from meshwright.solve.points import setting_of


@dataclass(frozen=True, slots=True)
class Piece:
    """A segment of a stage, everything kept. gathered: bytes of weights beside its transients. gradients: bytes that
    its parameters' take from its first backward on."""

    point: FrontierPoint
    gathered: int
    gradients: int = 0
    replica: TiedReplicaPrice | None = None

    def cost(self, microbatches: int, ways: tuple[Kept, ...] = (), kept: Kept | None = None) -> SegmentCost:
        """As the simulator takes it; with `kept`, as one of its ways."""
        point = self.point if kept is None else kept_point(self.point, self.gathered, ways, kept)
        restored = None if kept is None else max(0, ways[0].resident_bytes - kept.resident_bytes)
        found = replace(per_microbatch(point, microbatches), gradient_bytes=self.gradients, restored_bytes=restored)
        if kept is not None:
            found = replace(found, rest_bytes=kept.rest_bytes, added_bytes=kept.added_bytes)
        if self.replica is None:
            return found
        return replace(
            found,
            first_s=found.first_s + self.replica.first_s,
            last_s=found.last_s + self.replica.last_s,
            overlappable_s=found.last_s if found.overlappable_s else 0.0,  # a replica is waited for
            static_bytes=found.static_bytes + self.replica.held_bytes,
            gradient_bytes=found.gradient_bytes + self.replica.gradient_bytes,
        )


_known: dict[object, Piece] = CACHES.own({})
MOST_KNOWN = 1024
"""Prices of segments that are remembered: stages on meshes that are alike have many in common."""


def stage_pieces(plan: Plan, program: Program, number: int) -> list[Piece]:
    """The segments of `plan.stages[number]`; those that are alike are priced once."""
    stage, setting = plan.stages[number], setting_of(plan)
    mesh, model, texts = stand_in(stage.mesh), model_of(program), dict[int, str]()
    found = []
    for index in stage.segments:
        chosen = plan.segments[index]
        if chosen not in texts:
            texts[chosen] = str(bare(plan.choice(index)))
        parameters, charged = _parameters(plan, program, stage, index)
        key = (model, plan.microbatch, setting, mesh, texts[chosen], str(parameters), tuple(charged.items()))
        if key not in _known:
            if len(_known) >= MOST_KNOWN:
                _known.clear()
            _known[key] = _piece(plan, program, mesh, index, parameters, charged)
        found.append(_hosting(plan, program, stage, index, _known[key]))
    return found


def _piece(
    plan: Plan, program: Program, mesh: Mesh, index: int, parameters: dict[str, ParameterPlan], charged: dict[str, int]
) -> Piece:
    graph = program.graph(program.segments[index]).at(plan.microbatch)
    setting = setting_of(plan)
    point = price_segment(graph, bare(plan.choice(index)), parameters, mesh, setting, charged)
    gathered = sum(price.transient_bytes for price in parameter_prices(graph, parameters, charged, mesh, setting))
    gradients = sum(
        gradient_bytes(value, parameters[value.name], mesh, setting) for value in graph.params if value.name in charged
    )
    return Piece(point, gathered, gradients)


def _hosting(plan: Plan, program: Program, stage: Stage, index: int, piece: Piece) -> Piece:
    """With the weights of earlier stages that this segment is the first here to read."""
    replica = None
    for name in _tied_replicas(program, stage, index):
        price = _tied_replica(plan, program, stage, index, name)
        replica = price if replica is None else _sum(replica, price)
    return replace(piece, replica=replica) if replica else piece


def _parameters(
    plan: Plan, program: Program, stage: Stage, index: int
) -> tuple[dict[str, ParameterPlan], dict[str, int]]:
    """By local name: what was decided for each, and of those that count here how many segments of the stage's ranks
    use them."""
    segment = program.segments[index]
    own = {i for one in plan.stages if one.mesh.ranks == stage.mesh.ranks for i in one.segments}
    parameters, charged = {}, {}
    for value, name in zip(program.graphs[segment.graph].params, segment.params, strict=True):
        entry, uses = plan.parameters[name], program.uses_of(name)
        here = stage.tied_replicas.get(name)
        parameters[value.name] = entry if here is None else ParameterPlan(here, here, entry.dtype)
        if uses[0] == index:
            charged[value.name] = len(own & set(uses))
    return parameters, charged


def _tied_replicas(program: Program, stage: Stage, index: int) -> list[str]:
    """Weights of an earlier stage that this segment is the first here to read."""
    names = program.segments[index].params
    return [name for name in stage.tied_replicas if name in names and _first_here(program, stage, name) == index]


def _first_here(program: Program, stage: Stage, name: str) -> int:
    return next(i for i in program.uses_of(name) if i in stage.segments)


def _tied_replica(plan: Plan, program: Program, stage: Stage, index: int, name: str) -> TiedReplicaPrice:
    home, segment = plan.home(program, name), program.segments[index]
    value = program.graphs[segment.graph].params[segment.params.index(name)]
    source = (home.mesh, Layout.parse(plan.parameters[name].storage))
    ends = (plan.stage_at(home.mesh.ranks[0]), plan.stage_at(stage.mesh.ranks[0]))
    there, back = _rate(plan, *ends), _rate(plan, *ends[::-1])
    return tied_replica_price(
        value, Layout.parse(stage.tied_replicas[name]), stage.mesh, source, setting_of(plan), there, back
    )


def _sum(one: TiedReplicaPrice, other: TiedReplicaPrice) -> TiedReplicaPrice:
    return TiedReplicaPrice(
        one.first_s + other.first_s,
        one.last_s + other.last_s,
        one.held_bytes + other.held_bytes,
        one.gradient_bytes + other.gradient_bytes,
    )


def _rate(plan: Plan, source: int, target: int) -> Rate:
    if source == target:  # of two runs on the same devices
        return inner_rate(plan.groups[source][0].mesh)
    found = rates(plan).get((source, target))
    if found is None:
        raise PlanError(f"no wire from stage {source} to stage {target}", "one for all that exchange", "plan again")
    return found


def stage_costs(plan: Plan, program: Program, number: int, exact: bool = True) -> list[SegmentCost]:
    """exact: bytes are read off the segments' traced pairs. They are in any case where one of them recomputes."""
    return _hosted(*_device_costs(plan, program, number, exact))


def _device_costs(
    plan: Plan, program: Program, number: int, exact: bool
) -> tuple[list[SegmentCost], list[Piece], list[float]]:
    """Costs of a stage's segments, their pieces, and seconds of what each makes again, hosts aside."""
    stage, micro = plan.stages[number], plan.microbatches
    pieces = stage_pieces(plan, program, number)
    choices = [plan.choice(index) for index in stage.segments]
    if not exact and all(choice == bare(choice) for choice in choices):
        return [piece.cost(micro) for piece in pieces], pieces, [0.0] * len(pieces)
    ways = stage_ways(plan, program, stage, few=True)
    found, again = [], []
    for index, piece, choice, options in zip(stage.segments, pieces, choices, ways, strict=True):
        wanted = (choice.recompute, choice.keep, choice.chunks)
        kept = next((one for one in options if (one.recompute, one.keep, one.chunks) == wanted), None)
        if kept is None and choice == bare(choice):  # another way is no slower and holds less
            found.append(piece.cost(micro))
            again.append(0.0)
            continue
        if kept is None and choice.chunks > 1:
            raise PlanError(
                f"segment {program.segments[index].name} runs backward in {choice.chunks} chunks",
                f"one of its {len(options)} ways between keeping all and making all again",
                "undo the edit, or plan again",
            )
        kept = kept or way_of(plan, program, stage, index)
        found.append(piece.cost(micro, options, kept))
        again.append(max(0.0, kept.seconds - options[0].seconds))
    return found, pieces, again


def _hosted(costs: list[SegmentCost], pieces: list[Piece], again_s: list[float]) -> list[SegmentCost]:
    """A stage whose device waits for its host takes what the host needs."""
    host_s = step_host_s = 0.0
    for piece, more_s in zip(pieces, again_s, strict=True):
        point = piece.point
        host_s += point.backward_host_s
        host_s += point.forward_host_s * (1.0 + (more_s / point.forward_s if point.forward_s else 0.0))
        step_host_s += point.step_host_s
    slower = max(1.0, host_s / max(sum(cost.forward_s + cost.backward_s for cost in costs), 1e-30))
    more_s = max(0.0, step_host_s - sum(cost.step_s for cost in costs))
    if slower > 1.0:
        costs = [
            replace(
                cost,
                forward_s=cost.forward_s * slower,
                backward_input_s=cost.backward_input_s * slower,
                backward_weight_s=cost.backward_weight_s * slower,
            )
            for cost in costs
        ]
    return [replace(costs[0], step_s=costs[0].step_s + more_s), *costs[1:]] if more_s else costs


def transfers(plan: Plan, program: Program, pipeline: Pipeline) -> dict[tuple[int, int, int], Transfer]:
    """Every message between stages, there and back, by its slices on the stages' meshes. What is reduced before a
    gradient sets out is part of its way."""
    found: dict[tuple[int, int, int], Transfer] = {}
    for number in range(pipeline.stages):
        edges = Edges(plan, program, pipeline, number)
        for (segment, source, target), messages in edges.messages.items():
            if source != number:
                continue
            there, back = _Sums(), _Sums()
            for edge in messages:
                there.add(edge, _rate(plan, source, target))
                if edge.value.grad:
                    back.add(edge, _rate(plan, target, source), back=True)
            found[segment, source, target] = there.transfer(plan, source, target)
            found[segment, target, source] = back.transfer(plan, target, source)
    return found


def _ports(plan: Plan, source: int, target: int) -> tuple[str, ...]:
    """What messages share: a stage's way out and another's way in, over links of the same rate."""
    rate = _rate(plan, source, target).bandwidth
    return (f"out of {source} at {rate:.3g}", f"into {target} at {rate:.3g}")


@dataclass(slots=True)
class _Sums:
    seconds: float = 0.0
    sent: int = 0
    received: int = 0

    def add(self, edge: Edge, rate: Rate, back: bool = False) -> None:
        shape, size = edge.shape, edge.value.type.itemsize
        ends = [(form.stage.mesh, whole(form.layout)) for form in (edge.source, edge.target)]
        source, target = reversed(ends) if back else ends
        self.seconds += hand_over_s(shape, size, source, target, rate)
        if back:
            self.seconds += edge.target.reduction(shape, size).backward_s
        self.sent += local_bytes(shape, size, source[1], source[0])
        self.received += local_bytes(shape, size, target[1], target[0])

    def transfer(self, plan: Plan, source: int, target: int) -> Transfer:
        links = _ports(plan, source, target) if self.seconds else ()
        return Transfer(self.seconds, 0.0, self.sent, self.received, links, keeps_sent(plan.groups[source][0].mesh))


def plan_costs(plan: Plan, program: Program, pipeline: Pipeline, exact: bool = True, overlap: bool = True) -> Costs:
    """overlap: gathers and reductions run beside compute, as they do when the plan is run. A smaller last micro-batch
    has seconds of its own; its bytes are counted as those of the others."""
    segments = [cost for number in range(len(plan.stages)) for cost in stage_costs(plan, program, number, exact)]
    ranks = [group[0].mesh.world_size for group in plan.groups]
    found = Costs(segments, transfers(plan, program, pipeline), overlap, ranks=ranks)
    smaller = plan.remainder
    if smaller is None:
        return found
    last = [cost for number in range(len(plan.stages)) for cost in _smaller(plan, smaller, program, number, exact)]
    return replace(found, last=Costs(last, transfers(smaller, program, pipeline)))


def _smaller(plan: Plan, smaller: Plan, program: Program, number: int, exact: bool) -> list[SegmentCost]:
    """Costs of a stage's segments in the last micro-batch: what they make again takes as much less as their forward."""
    full, _, again = _device_costs(plan, program, number, exact)
    pieces, costs, less = stage_pieces(smaller, program, number), [], []
    for other, piece, more_s in zip(full, pieces, again, strict=True):
        own = piece.cost(plan.microbatches)
        less.append(more_s * own.forward_s / other.forward_s if other.forward_s else 0.0)
        seconds = (own.forward_s, own.backward_input_s + less[-1], own.backward_weight_s)
        costs.append(replace(other, forward_s=seconds[0], backward_input_s=seconds[1], backward_weight_s=seconds[2]))
    return _hosted(costs, pieces, less)
