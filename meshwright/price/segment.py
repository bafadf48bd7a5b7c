"""`price_segment`: the cost of a segment under a Choice, counted from every op, conversion and parameter.

The planner's objective has the same terms; a test holds that the two agree on what is chosen.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import prod

from meshwright.caches import CACHES
from meshwright.capture.program import Op, SegmentGraph, Value
from meshwright.cluster import Axis, Mesh, collective_s
from meshwright.cost.op.compute import op_seconds
from meshwright.cost.op.fused import fused_shares
from meshwright.layout import Collective, Layout
from meshwright.plan import Choice, FrontierPoint, ParameterPlan
from meshwright.price.bucketing import grad_buckets, parts_of, whole_bytes
from meshwright.price.flow import Flow, flow
from meshwright.price.parameter import ParameterPrice, Setting, local_bytes, parameter_price
from meshwright.profile import is_view, saved
from meshwright.profile.lookup import is_lookup
from meshwright.profile.saved import DeviceKind
from meshwright.rules import Strategy


def price_segment(
    graph: SegmentGraph,
    choice: Choice,
    parameters: Mapping[str, ParameterPlan],
    mesh: Mesh,
    setting: Setting,
    charged: Mapping[str, float] | None = None,
    known: Mapping[str, Strategy] | None = None,
) -> FrontierPoint:
    """graph: with its batch fixed.
    charged: uses of each parameter whose storage, gather and optimizer count here; all, used once, unless given.
    A tied parameter counts in its first segment only.
    known: strategies of the choice by op, where they are at hand.
    """
    uses = {value.name: 1.0 for value in graph.params} if charged is None else charged
    found = flow(graph, choice, mesh, known=known)
    values, shares = graph.values(), fused_shares(graph) if setting.compile else {}
    prices = parameter_prices(graph, parameters, uses, mesh, setting)
    shared = _levels((c for price in prices for c in (*price.gather.forward, *price.gather.backward)), mesh)
    forward_s = backward_s = weight_s = forward_host_s = backward_host_s = forward_wire_s = backward_wire_s = 0.0
    working = 0
    for op in graph.ops:
        made = found.strategies[op.name]
        seconds = op_seconds(op, made, values, mesh.device, shares.get(op.name, 1.0))
        forward_s += seconds.forward_s + collectives_s(made.collectives_forward, mesh)
        forward_wire_s += _sharing_s(made.collectives_forward, mesh, shared)
        forward_host_s += seconds.forward_host_s
        backward_host_s += seconds.backward_host_s
        if any(value.grad for value in op.results):
            weight_s += seconds.weight_s
            backward_s += seconds.input_s + collectives_s(made.collectives_backward, mesh)
            backward_wire_s += _sharing_s(made.collectives_backward, mesh, shared)
        working = max(working, working_bytes(op, made, values, mesh))
    for step in found.moves.values():
        forward_s += step.conversion.forward_s
        backward_s += step.conversion.backward_s
        forward_wire_s += _sharing_s(step.conversion.forward, mesh, shared)
        backward_wire_s += _sharing_s(step.conversion.backward, mesh, shared)
        working = max(working, step.conversion.transient_bytes)
    plans = [parameters[value.name] for value in graph.params if value.name in uses]
    gathered = sum(price.transient_bytes for price in prices)
    add_s = sum(price.add_s for price in prices) / setting.microbatches
    return FrontierPoint(
        choice=choice,
        forward_s=forward_s,
        backward_input_s=backward_s,
        backward_weight_s=weight_s + add_s,
        gather_params_s=sum(price.gather_params_s for price in prices),
        reduce_grads_s=sum(price.reduce_grads_s for price in prices),
        step_s=sum(price.step_s for price in prices),
        overlappable_s=sum(
            price.gather_params_s + price.reduce_grads_s if mesh.world_size > 1 else price.overlapped_s
            for price in prices
        ),
        static_bytes=sum(price.static_bytes for price in prices),
        resident_bytes=resident_bytes(found),
        forward_transient_bytes=working + gathered,
        backward_transient_bytes=2 * working + gathered,
        gather_per_use_s=sum(
            price.gather_params_s for price, plan in zip(prices, plans, strict=True) if plan.reshard_after_forward
        ),
        reduce_per_microbatch_s=sum(price.reduce_per_microbatch_s for price in prices),
        pending_grad_bytes=sum(price.pending_grad_bytes for price in prices),
        prefetched_param_bytes=sum(price.prefetched_param_bytes for price in prices),
        forward_host_s=forward_host_s,
        backward_host_s=backward_host_s,
        step_host_s=sum(price.step_host_s for price in prices),
        forward_wire_s=forward_wire_s,
        backward_wire_s=backward_wire_s,
        lookup=is_lookup(graph),
        grad_buckets=_departures(prices, mesh),
        core_driven_comm_s=sum(price.core_driven_comm_s for price in prices) if mesh.world_size > 1 else 0.0,
        slowed_s=sum(price.contended_s for price in prices) / setting.microbatches,
    )


def _departures(prices: Sequence[ParameterPrice], mesh: Mesh) -> int:
    """Number of parts in which gradients leave, if all of them are reduced alike."""
    leaving = [price.gather.backward[0] for price in prices if price.reduce_grads_s and price.gather.backward]
    if not leaving:
        return 1
    sizes, largest = [moved.bytes for moved in reversed(leaving)], max(leaving, key=lambda moved: moved.bytes)
    return len(set(parts_of(sizes, grad_buckets(largest.kind, sum(sizes), mesh.axis(largest.axis)))))


def parameter_prices(
    graph: SegmentGraph,
    parameters: Mapping[str, ParameterPlan],
    uses: Mapping[str, float],
    mesh: Mesh,
    setting: Setting,
) -> list[ParameterPrice]:
    """Prices of the parameters in `uses`."""
    together = whole_bytes(graph.params)
    return [
        parameter_price(value, parameters[value.name], mesh, setting, uses[value.name], together)
        for value in graph.params
        if value.name in uses
    ]


def collectives_s(collectives: tuple[Collective, ...], mesh: Mesh) -> float:
    return sum(collective_s(item.kind, item.bytes, mesh.axis(item.axis)) for item in collectives)


def _sharing_s(collectives: Iterable[Collective], mesh: Mesh, levels: frozenset[str]) -> float:
    """Seconds of collectives that cross one of these levels."""
    if not levels:
        return 0.0
    axes = ((item, mesh.axis(item.axis)) for item in collectives)
    return sum(collective_s(item.kind, item.bytes, axis) for item, axis in axes if crosses(axis) & levels)


def _levels(collectives: Iterable[Collective], mesh: Mesh) -> frozenset[str]:
    return frozenset().union(*(crosses(mesh.axis(name)) for name in {item.axis for item in collectives}))


@CACHES.memoized(maxsize=4096)
def crosses(axis: Axis) -> frozenset[str]:
    """Levels of the cluster whose links the mesh's ranks use."""
    return frozenset(hop.level for hops in axis.kinds for hop in hops)


def resident_bytes(found: Flow) -> int:
    """Bytes that backward reads, each storage once; what is held anyway is counted elsewhere."""
    kept: dict[tuple[str, Layout], int] = {}
    auxiliary = 0
    base = storage_bases(found.graph)
    values = found.graph.values()
    outside = held_anyway(found.graph)
    for op in found.graph.ops:
        if not any(value.grad for value in op.results):
            continue
        made = found.strategies[op.name]
        auxiliary += saved(op, values, kernels(found.mesh)).auxiliary_bytes // shards(made, found.mesh)
        for name, layout in kept_values(op, made, values, outside, found.mesh):
            value = values[name]
            size = local_bytes(value.type.sizes, value.type.itemsize, layout, found.mesh)
            key = (base[name], layout)
            kept[key] = max(kept.get(key, 0), size)
    return sum(kept.values()) + auxiliary


def held_anyway(graph: SegmentGraph) -> frozenset[str]:
    """Values in memory whatever the segment keeps: common values, parameters and buffers."""
    return frozenset(value.name for value in (*graph.shared_values, *graph.params, *graph.buffers))


def kernels(mesh: Mesh) -> DeviceKind:
    """The kind of kernels of the mesh's devices."""
    return "cpu" if mesh.device.kind == "cpu" else "cuda"


def kept_values(
    op: Op, made: Strategy, values: Mapping[str, Value], outside: Collection[str], mesh: Mesh
) -> list[tuple[str, Layout]]:
    """Values that the op's backward reads, with their layouts. outside: as of `held_anyway`."""
    reads, operands = saved(op, values, kernels(mesh)), op.operands()
    pairs = [(operands[i], made.operands[i]) for i in reads.operands]
    pairs += [(op.results[i].name, made.results[i]) for i in reads.results]
    return [(name, layout) for name, layout in pairs if name not in outside]


def storage_bases(graph: SegmentGraph) -> dict[str, str]:
    """The base of every value: itself, or the value it is a view of."""
    base = {name: name for name in graph.values()}
    for op in graph.ops:
        if is_view(op) and op.operands():
            base.update((value.name, base[op.operands()[0]]) for value in op.results)
    return base


def shards(made: Strategy, mesh: Mesh) -> int:
    """Number of parts of an op's auxiliaries, which shrink with every axis that is given to a factor."""
    return prod(size for factor, size in zip(made.factors, mesh.sizes, strict=True) if factor)


def least_working_bytes(op: Op, found: Iterable[Strategy], values: Mapping[str, Value], mesh: Mesh) -> int:
    """The least working bytes of any strategy of an op, backward included."""
    factor = 2 if any(value.grad for value in op.results) else 1
    return factor * min(working_bytes(op, made, values, mesh) for made in found)


def working_bytes(op: Op, made: Strategy, values: Mapping[str, Value], mesh: Mesh) -> int:
    """Bytes of operands and results on one rank."""
    names = [
        *zip(op.operands(), made.operands, strict=True),
        *((value.name, layout) for value, layout in zip(op.results, made.results, strict=True)),
    ]
    return sum(local_bytes(values[n].type.sizes, values[n].type.itemsize, layout, mesh) for n, layout in names)
