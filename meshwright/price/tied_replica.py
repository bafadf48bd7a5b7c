"""Tied replicas: copies of a weight on stages that read it, sent by its owner once a step."""

from __future__ import annotations

from typing import NamedTuple

from meshwright.capture.program import ITEM_BYTES, Value
from meshwright.cluster import Mesh
from meshwright.layout import Layout, conversion
from meshwright.plan import ParameterPlan
from meshwright.price.handover import Rate, hand_over_s
from meshwright.price.parameter import Setting, local_bytes


class TiedReplicaPrice(NamedTuple):
    """gather_params_s: receiving the copy.
    reduce_grads_s: reducing its gradient and sending it to the owner.
    held_bytes: copy and gradient.
    gradient_bytes: of these, the gradient.
    """

    gather_params_s: float
    reduce_grads_s: float
    held_bytes: int
    gradient_bytes: int = 0


def tied_replica_price(
    value: Value, compute: Layout, mesh: Mesh, home: tuple[Mesh, Layout], setting: Setting, there: Rate, back: Rate
) -> TiedReplicaPrice:
    """compute: the layout on the replica's mesh.
    home: mesh and storage layout of the owner.
    """
    shape, narrow = value.type.sizes, value.type.itemsize
    wide = ITEM_BYTES[setting.storage_dtype(value.type.dtype)]
    here, source = (mesh, compute.reduced()), (home[0], home[1].reduced())
    gather_params_s = hand_over_s(shape, narrow, source, here, there)
    copy = local_bytes(shape, narrow, compute, mesh)
    if not value.grad:
        return TiedReplicaPrice(gather_params_s, 0.0, copy)
    reduced_s = conversion(compute.reduced(), compute, shape, wide, mesh, grad=True).backward_s
    reduce_grads_s = reduced_s + hand_over_s(shape, wide, here, source, back)
    summed = local_bytes(shape, wide, compute, mesh)
    return TiedReplicaPrice(gather_params_s, reduce_grads_s, copy + summed, summed)


def gradient_bytes(value: Value, plan: ParameterPlan, mesh: Mesh, setting: Setting) -> int:
    """The part of a parameter's static bytes that is its gradient, there from the first backward on."""
    if not value.grad:
        return 0
    shape, wide = value.type.sizes, ITEM_BYTES[plan.dtype]
    stored = local_bytes(shape, wide, Layout.parse(plan.storage), mesh)
    summed = local_bytes(shape, wide, Layout.parse(plan.compute), mesh)
    if plan.on_host:  # it goes to the host; of several micro-batches it is summed here
        return summed if setting.microbatches > 1 else 0
    return stored + (
        summed if setting.microbatches > 1 and summed != stored and not plan.reduce_scatter_every_microbatch else 0
    )
