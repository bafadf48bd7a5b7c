"""What the parameters of a block add to it: gathers, reduction, optimizer, and what they hold."""

from __future__ import annotations

from dataclasses import replace

from meshwright.capture.program import ITEM_BYTES, TensorType, Value
from meshwright.cluster import Mesh, collective_s
from meshwright.cluster.contention import compute_slowdown
from meshwright.configuration.configuration import Configuration
from meshwright.plan import FrontierPoint, ParameterPlan
from meshwright.price.hosted import link_s
from meshwright.price.parameter import ParameterPrice, Setting, parameter_price


def with_parameters(
    point: FrontierPoint, count: int, mesh: Mesh, given: Configuration, share: float = 0.0
) -> FrontierPoint:
    """mesh: the ranks over which they are kept. share: of the optimizer, what is on the host."""
    size = mesh.axes[0].size
    value = Value("flat", TensorType((-(-count // size) * size,), given.dtype), True)
    storage = "[S(0)]" if given.zero and size > 1 else "[I]"
    plan = ParameterPlan(storage, "[R]", given.stored, given.zero == 3 and size > 1, given.zero >= 2 and size > 1)
    setting = Setting(
        precision="bf16" if given.precision == "bf16" else "mixed", microbatches=given.microbatches, reduce=given.reduce
    )
    price = parameter_price(value, plan, mesh, setting)
    if given.zero == 1 and not given.scatter:
        reduce_s = collective_s("all_reduce", count * ITEM_BYTES[given.reduce], mesh.axes[0])
        price = price._replace(reduce_grads_s=reduce_s)
    if given.zero < 2:
        price = _in_whole_buffer(price, given)
    if given.zero == 3 and given.listed:
        gathers = _listed("all_gather", 3, count * ITEM_BYTES[given.dtype], mesh, given)
        reduces = _listed("reduce_scatter", 2, count * ITEM_BYTES[given.reduce], mesh, given)
        price = price._replace(
            gather_params_s=gathers * price.gather_params_s, reduce_grads_s=reduces * price.reduce_grads_s
        )
    overlapped = given.overlap * (1.0 - (compute_slowdown(mesh.axes[0]) if given.contention else 0.0))
    if given.clipped:
        price = price._replace(step_s=price.step_s + _passes_s(count, size, mesh, given))
    held, hosted = _state_bytes(price, count, size, given), hosted_bytes(count, size, given, share)
    if hosted:  # comes and goes in groups, on a lane each way, while others are updated
        copies_s = (1.0 - given.offload_overlap) * link_s(mesh.device, hosted)
        price = price._replace(step_s=max(price.step_s, copies_s))
    return _added(point, price, given, held - hosted, overlapped)


def _listed(kind: str, passes: int, n_bytes: int, mesh: Mesh, given: Configuration) -> float:
    """How much longer the tensors of a layer take one after the other, each from or into a list with a part for each
    rank, which a kernel of its own copies. passes: reads and writes of all bytes by these, and by zeros before."""
    axis, device = mesh.axes[0], mesh.device
    rate = device.memory_bandwidth * device.achievable_fraction("memory")
    copied_s = given.listed * axis.size * device.launch_s + passes * n_bytes / rate
    one_s = collective_s(kind, n_bytes / given.listed, axis)
    return (given.listed * one_s + copied_s) / (collective_s(kind, n_bytes, axis) or 1.0)


def _passes_s(count: int, ranks: int, mesh: Mesh, given: Configuration) -> float:
    """Passes over gradients once a step: the whole buffer is read and written by its scale and written by zeros, what
    a rank updates is read for its norm, then read and written by the clip."""
    own = count // ranks if given.zero else count
    rate = mesh.device.memory_bandwidth * mesh.device.achievable_fraction("memory")
    return 3 * ITEM_BYTES[given.gradients] * (count + own) / rate


def _in_whole_buffer(price: ParameterPrice, given: Configuration) -> ParameterPrice:
    """Of gradients that are added up in one whole buffer of a dtype of its own, and wait there for their reduction."""
    fresh = ITEM_BYTES[given.dtype]
    traffic = (2 * ITEM_BYTES[given.gradients] + fresh) / (2 * ITEM_BYTES[given.stored] + fresh)
    return price._replace(add_s=price.add_s * traffic, pending_grad_bytes=0)


def _state_bytes(price: ParameterPrice, count: int, ranks: int, given: Configuration) -> int:
    """Weights, gradients, a master copy where these are stored in another dtype, AdamW's states. Without ZeRO or with
    its first stage weights are whole, and gradients one whole buffer, in which ranks reduce their shard."""
    if given.zero > 1:
        return price.static_bytes
    weights = ITEM_BYTES[given.dtype]
    fresh = ITEM_BYTES[given.dtype] if given.half_gradients else 0
    states = (2 + (given.dtype != given.stored)) * ITEM_BYTES[given.stored] * count // (ranks if given.zero else 1)
    return (weights + fresh + ITEM_BYTES[given.gradients]) * count + states


def hosted_bytes(count: int, ranks: int, given: Configuration, share: float) -> int:
    """This share of AdamW's states and of a master copy, if weights are computed with in a copy of their own: ZeRO-3
    makes that of the master copy, and keeps it in its place."""
    states = 3 * ITEM_BYTES[given.stored]
    states -= ITEM_BYTES[given.dtype] if given.dtype == given.stored or given.zero == 3 else 0
    return round(share * (states * count // (ranks if given.zero else 1)))


def _added(point: FrontierPoint, price: ParameterPrice, given: Configuration, held: int, share: float) -> FrontierPoint:
    """share: of gathers and reductions, what compute hides."""
    gather_params_s, reduce_grads_s = (
        price.gather_params_s * (given.gathers / 2 if given.zero == 3 else 1.0),
        price.reduce_grads_s,
    )
    return replace(
        point,
        backward_weight_s=point.backward_weight_s + price.add_s / given.microbatches,
        gather_params_s=point.gather_params_s + gather_params_s,
        reduce_grads_s=point.reduce_grads_s + reduce_grads_s,
        step_s=point.step_s + price.step_s,
        overlappable_s=point.overlappable_s + share * (gather_params_s + reduce_grads_s),
        static_bytes=point.static_bytes + held,
        forward_transient_bytes=point.forward_transient_bytes + price.transient_bytes,
        backward_transient_bytes=point.backward_transient_bytes + price.transient_bytes,
        gather_per_use_s=point.gather_per_use_s + (gather_params_s if given.zero == 3 else 0.0),
        reduce_per_microbatch_s=point.reduce_per_microbatch_s + (reduce_grads_s if given.zero >= 2 else 0.0),
        pending_grad_bytes=point.pending_grad_bytes + price.pending_grad_bytes,
        prefetched_param_bytes=point.prefetched_param_bytes + price.prefetched_param_bytes,
        step_host_s=point.step_host_s + price.step_host_s,
    )
