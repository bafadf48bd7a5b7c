"""Pieces: the segments of a stage with everything kept, priced op by op from the plan alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from operator import add

from meshwright.caches import CACHES
from meshwright.capture.program import Program
from meshwright.cluster import Mesh
from meshwright.layout import Layout
from meshwright.plan import FrontierPoint, ParameterPlan, Plan, Stage
from meshwright.predict.transfers import rate_of
from meshwright.predict.ways import bare, kept_point, model_of
from meshwright.price.hosted import HostedUpdate
from meshwright.price.parameter import Setting, chain_uses
from meshwright.price.segment import parameter_prices, price_segment
from meshwright.price.tied_replica import TiedReplicaPrice, gradient_bytes, tied_replica_price
from meshwright.profile.lookup import lookup_segments
from meshwright.remat.curve import RematPoint
from meshwright.simulate import SegmentCost


def setting_of(plan: Plan) -> Setting:
    return Setting(plan.optimizer, plan.precision, plan.microbatches, compile=plan.compile)


@dataclass(frozen=True, slots=True)
class Piece:
    """A segment of a stage with everything kept.

    gathered: bytes of gathered weights, besides the transients.
    gradients: bytes of parameter gradients from the first backward on.
    replica: the tied replica that the segment is first to read.
    add_s: in each backward, adding gradients to those of other micro-batches.
    hosted: updates of parameters whose states are on the host.
    link_s: the part of gathers that is copies from the host.
    """

    point: FrontierPoint
    gathered: int
    gradients: int = 0
    replica: TiedReplicaPrice | None = None
    add_s: float = 0.0
    hosted: HostedUpdate | None = None
    link_s: float = 0.0

    def with_hosted(self, cost: SegmentCost) -> SegmentCost:
        """The cost with updates of offloaded states apart from the others."""
        if self.hosted is None:
            return cost
        return replace(
            cost,
            step_s=max(0.0, cost.step_s - self.hosted.seconds),
            hosted_step_s=self.hosted.update_s,
            fetch_state_s=self.hosted.fetch_s,
            put_state_s=self.hosted.put_s,
            state_bytes=self.hosted.moved_bytes,
        )

    def traced(self, way: RematPoint) -> Piece:
        """The piece with seconds of a traced pair, on device and host."""
        weight_s = min(way.weight_s, way.backward_s)
        point = replace(
            self.point,
            forward_s=way.forward_s,
            backward_input_s=way.backward_s - weight_s,
            backward_weight_s=weight_s + self.add_s,
            forward_host_s=way.forward_host_s,
            backward_host_s=way.backward_host_s,
        )
        return replace(self, point=point)

    def cost(self, microbatches: int, ways: tuple[RematPoint, ...] = (), kept: RematPoint | None = None) -> SegmentCost:
        """The cost for the simulator, everything kept or by the way `kept`."""
        point = self.point if kept is None else kept_point(self.point, self.gathered, ways, kept)
        restored = None if kept is None else max(0, ways[0].resident_bytes - kept.resident_bytes)
        found = self.with_hosted(per_microbatch(point, microbatches))
        found = replace(found, gradient_bytes=self.gradients, restored_bytes=restored)
        if kept is not None:
            found = replace(found, rest_bytes=kept.rest_bytes, added_bytes=kept.added_bytes)
            if kept.recompute and kept.chunks == 1:  # an instruction of its own; of chunks, a part of each backward
                recompute_s = max(0.0, kept.seconds - ways[0].seconds)
                found = replace(found, backward_input_s=found.backward_input_s - recompute_s, recompute_s=recompute_s)
        if self.replica is None:
            return found
        return replace(
            found,
            gather_params_s=found.gather_params_s + self.replica.gather_params_s,
            reduce_grads_s=found.reduce_grads_s + self.replica.reduce_grads_s,
            overlappable_s=found.reduce_grads_s if found.overlappable_s else 0.0,  # a replica is waited for
            static_bytes=found.static_bytes + self.replica.held_bytes,
            gradient_bytes=found.gradient_bytes + self.replica.gradient_bytes,
        )


_known: dict[object, Piece] = CACHES.own({})
MOST_KNOWN = 1024
"""Prices of segments that are remembered: stages on meshes that are alike have many in common."""


def stage_pieces(plan: Plan, program: Program, number: int) -> list[Piece]:
    """Pieces of `plan.stages[number]`; equal segments are priced once."""
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
    plan: Plan,
    program: Program,
    mesh: Mesh,
    index: int,
    parameters: dict[str, ParameterPlan],
    charged: dict[str, float],
) -> Piece:
    graph = program.graph(program.segments[index]).at(plan.microbatch)
    setting = setting_of(plan)
    point = price_segment(graph, bare(plan.choice(index)), parameters, mesh, setting, charged)
    prices = parameter_prices(graph, parameters, charged, mesh, setting)
    gathered = sum(price.transient_bytes for price in prices)
    gradients = sum(
        gradient_bytes(value, parameters[value.name], mesh, setting) for value in graph.params if value.name in charged
    )
    add_s = sum(price.add_s for price in prices) / setting.microbatches
    hosted = [price.hosted for price in prices if price.hosted is not None]
    update = HostedUpdate._make(map(sum, zip(*hosted, strict=True))) if hosted else None
    step_s = point.step_s - sum(one.seconds for one in hosted) + (update.seconds if update else 0.0)
    link_s = sum(price.link_s for price in prices)
    return Piece(replace(point, step_s=step_s), gathered, gradients, add_s=add_s, hosted=update, link_s=link_s)


def _hosting(plan: Plan, program: Program, stage: Stage, index: int, piece: Piece) -> Piece:
    """The piece with the tied replicas that this segment is first in the stage to read."""
    replica = None
    for name in _tied_replicas(program, stage, index):
        price = _tied_replica(plan, program, stage, index, name)
        replica = price if replica is None else TiedReplicaPrice._make(map(add, replica, price))
    return replace(piece, replica=replica) if replica else piece


def _parameters(
    plan: Plan, program: Program, stage: Stage, index: int
) -> tuple[dict[str, ParameterPlan], dict[str, float]]:
    """(parameter plans by local name, number of uses of those that count here).

    In a chain of one stage uses that find the weight gathered are not counted.
    """
    segment, alone = program.segments[index], len(plan.stages) == 1
    own = [one.segments for one in plan.stages if one.mesh.ranks == stage.mesh.ranks]
    lookups = lookup_segments(program) if alone else frozenset[int]()
    parameters: dict[str, ParameterPlan] = {}
    charged: dict[str, float] = {}
    for value, name in zip(program.graphs[segment.graph].params, segment.params, strict=True):
        entry, uses = plan.parameters[name], program.uses_of(name)
        here = stage.tied_replicas.get(name)
        parameters[value.name] = entry if here is None else ParameterPlan(here, here, entry.dtype)
        if uses[0] == index and alone:
            charged[value.name] = chain_uses(uses, len(program.segments), plan.microbatches, lookups)
        elif uses[0] == index:
            charged[value.name] = sum(user in run for user in uses for run in own)
    return parameters, charged


def _tied_replicas(program: Program, stage: Stage, index: int) -> list[str]:
    """Tied replicas that this segment is first in the stage to read."""
    names = program.segments[index].params
    return [name for name in stage.tied_replicas if name in names and _first_here(program, stage, name) == index]


def _first_here(program: Program, stage: Stage, name: str) -> int:
    return next(i for i in program.uses_of(name) if i in stage.segments)


def _tied_replica(plan: Plan, program: Program, stage: Stage, index: int, name: str) -> TiedReplicaPrice:
    home, segment = plan.home(program, name), program.segments[index]
    value = program.graphs[segment.graph].params[segment.params.index(name)]
    source = (home.mesh, Layout.parse(plan.parameters[name].storage))
    ends = (plan.stage_at(home.mesh.ranks[0]), plan.stage_at(stage.mesh.ranks[0]))
    there, back = rate_of(plan, *ends), rate_of(plan, *ends[::-1])
    return tied_replica_price(
        value, Layout.parse(stage.tied_replicas[name]), stage.mesh, source, setting_of(plan), there, back
    )


def per_microbatch(point: FrontierPoint, microbatches: int) -> SegmentCost:
    """A FrontierPoint as the cost of one micro-batch.

    Gathers of each use and reductions of every micro-batch are part of it. With several micro-batches the sums of
    gradients are static bytes until they are reduced.
    """
    cost = SegmentCost.of(point)
    return replace(
        cost,
        forward_s=cost.forward_s + point.gather_per_use_s / (2 * microbatches),
        backward_input_s=cost.backward_input_s + point.gather_per_use_s / (2 * microbatches),
        backward_weight_s=cost.backward_weight_s + point.reduce_per_microbatch_s / microbatches,
        gather_params_s=max(0.0, cost.gather_params_s - point.gather_per_use_s),
        reduce_grads_s=max(0.0, cost.reduce_grads_s - point.reduce_per_microbatch_s),
        overlappable_s=max(0.0, cost.overlappable_s - point.gather_per_use_s - point.reduce_per_microbatch_s),
        pending_grad_bytes=point.pending_grad_bytes if microbatches == 1 else 0,
        forward_wire_s=0.0,
        backward_wire_s=0.0,
        reduce_per_microbatch_s=0.0,
        grad_buckets=1,
        forward_host_s=0.0,
        backward_host_s=0.0,
        step_host_s=0.0,
        prefetched_param_bytes=0,
    )


_stand_ins: dict[object, Mesh] = CACHES.own({})
MOST_STAND_INS = 1024


def stand_in(mesh: Mesh) -> Mesh:
    """A representative of all meshes with the same prices, so that what is known of one serves all."""
    key = (mesh.axes, mesh.device, mesh.flat)
    if key not in _stand_ins:
        if len(_stand_ins) >= MOST_STAND_INS:
            _stand_ins.clear()
        _stand_ins[key] = mesh
    return _stand_ins[key]
