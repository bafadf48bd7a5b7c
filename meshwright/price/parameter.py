"""Seconds and bytes of a parameter: conversions between storage and compute layout, and the optimizer."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

from meshwright.caches import CACHES
from meshwright.capture.optimizer import STATES
from meshwright.capture.precision import WIDENED
from meshwright.capture.program import ITEM_BYTES, Value
from meshwright.cluster import Mesh, collective_s
from meshwright.cluster.contention import compute_slowdown
from meshwright.cost.optimizer import update_s
from meshwright.cutting import cut_batch
from meshwright.layout import Collective, Conversion, Layout, conversion
from meshwright.plan import ParameterPlan
from meshwright.price.bucketing import moving, part_of_bucket_s, scattered_layout, shared_op, whole_bytes
from meshwright.price.hosted import HostedUpdate, hosted_update, link_s


@dataclass(frozen=True, slots=True)
class Setting:
    """What holds for a whole step.

    last: samples of the last one where they are fewer.
    reduce: dtype in which gradients travel; that of storage unless given.
    offload: what of parameters is on the host (`ParameterPlan.offload`).
    offloaded: names of these parameters; all unless given.
    """

    optimizer: str = "adamw"
    precision: str = "fp32"
    microbatches: int = 1
    last: int = 0
    compile: bool = False
    reduce: str = ""
    offload: str = ""
    offloaded: frozenset[str] | None = None

    def offload_of(self, name: str, trainable: bool) -> str:
        """What of a parameter lives on the host; a frozen one has no optimizer state."""
        wanted = self.offloaded is None or name in self.offloaded
        return self.offload if wanted and (trainable or self.offload == "weight") else ""

    def cut(self, batch: int, microbatches: int) -> Setting:
        each, last = cut_batch(batch, microbatches)
        return replace(self, microbatches=microbatches, last=last if last < each else 0)

    def storage_dtype(self, dtype: str) -> str:
        """In which dtype a parameter that computes in `dtype` is stored, its gradient and states alike."""
        return "float32" if self.precision in WIDENED and dtype in ("bfloat16", "float16") else dtype


class ParameterPrice(NamedTuple):
    """What one parameter takes in a step.

    gather_params_s: its gathers; link_s: of these, copies from the host.
    reduce_grads_s: its gradient's reductions; reduce_per_microbatch_s: of these, what follows each micro-batch.
    step_s: the optimizer's update of what is stored; where hosted, the part of it that is not hidden.
    step_host_s: the host's part in the update.
    add_s: adding up the micro-batches' gradients, a part of each backward.
    pending_grad_bytes: what the gradient takes beyond its storage until it is reduced.
    prefetched_param_bytes: what is gathered while another segment runs.
    core_driven_comm_s: of gathers and reductions, what takes the time of the cores that compute.
    contended_s: how much longer compute takes while the others run (`cluster.contention`).
    overlapped_s: of gathers and reductions, what overlaps with compute on one device too.
    hosted: the update, where optimizer state is on the host.
    """

    gather_params_s: float
    reduce_grads_s: float
    step_s: float
    static_bytes: int
    transient_bytes: int
    gather: Conversion
    pending_grad_bytes: int = 0
    step_host_s: float = 0.0
    prefetched_param_bytes: int = 0
    add_s: float = 0.0
    core_driven_comm_s: float = 0.0
    link_s: float = 0.0
    overlapped_s: float = 0.0
    hosted: HostedUpdate | None = None
    reduce_per_microbatch_s: float = 0.0
    contended_s: float = 0.0

    @property
    def async_comm_s(self) -> float:
        return self.gather_params_s + self.reduce_grads_s - self.core_driven_comm_s

    @property
    def total_s(self) -> float:
        return self.gather_params_s + self.reduce_grads_s + self.step_s + self.add_s + self.contended_s


def chain_uses(users: Sequence[int], segments: int, microbatches: int, lookups: Collection[int] = frozenset()) -> float:
    """Number of segments that read a parameter; a use whose gather is not made counts half.

    The last segment's backward finds what its forward gathered, and the first one's forward what the micro-batch before
    left.
    lookups: segments whose backward does not read the parameter; of the first of them only the last micro-batch's,
    after which no forward comes.
    """
    last = segments - 1
    unread = sum(1 if user else 1 / microbatches for user in users if user in lookups and user != last)
    return len(users) - (unread + (last in users) + (0 in users) * (microbatches - 1) / microbatches) / 2


def gathers(plan: ParameterPlan, uses: float, microbatches: int = 1) -> int:
    """Number of conversions to the compute layout in a step: one for each use, or one."""
    return round(2 * uses * microbatches) if plan.reshard_after_forward else 1


def reductions(plan: ParameterPlan, microbatches: int = 1) -> int:
    """Number of reduce-scatters of the gradient in a step; replicas are summed once (`scattered_layout`)."""
    return microbatches if plan.reduce_scatter_every_microbatch else 1


def parameter_price(
    value: Value, plan: ParameterPlan, mesh: Mesh, setting: Setting, uses: float = 1, together: int = 0
) -> ParameterPrice:
    """`uses`: how many segments read it (`chain_uses`); more than one for tied weights. together: `whole_bytes` of its
    segment's parameters, which travel in buckets: each pays its part of one, as if all of them moved alike."""
    company = max(1.0, together / max(1, whole_bytes((value,)))) if together else 1.0
    return _price(value.type.sizes, value.type.dtype, value.grad, plan, mesh, setting, uses, company)


@CACHES.memoized(maxsize=1 << 16)
def _price(
    shape: tuple[int, ...],
    dtype: str,
    grad: bool,
    plan: ParameterPlan,
    mesh: Mesh,
    setting: Setting,
    uses: float,
    company: float,
) -> ParameterPrice:
    where = plan.storage, plan.compute, plan.dtype
    one = _moved(shape, dtype, grad, where, mesh, setting.reduce or plan.dtype, STATES[setting.optimizer], company)
    micro = setting.microbatches
    gather_params_s = gathers(plan, uses, micro) * one.gather_s
    held = one.stored + (0 if plan.reshard_after_forward else one.copied)
    transient = one.copied if plan.reshard_after_forward else 0
    core_driven_comm_s, contended_s = gather_params_s * one.gather_carried, gather_params_s * one.gather_contended
    if not grad:
        price = ParameterPrice(
            gather_params_s,
            0.0,
            0.0,
            held,
            transient,
            one.gather,
            prefetched_param_bytes=transient,
            core_driven_comm_s=core_driven_comm_s,
            contended_s=contended_s,
        )
        return _on_host(price, plan, mesh, _sizes(one, plan, dtype), gathers(plan, uses, micro))
    early, states = transient, STATES[setting.optimizer]
    held += one.stored * (1 + states)
    transient += one.copied
    add_s = 0.0
    if micro > 1:
        every = plan.reduce_scatter_every_microbatch
        summed = one.stored if every else one.computed_wide
        rate = mesh.device.memory_bandwidth * mesh.device.achievable_fraction("memory")
        add_s = (micro - 1) * (2 * summed + one.computed) / rate  # fresh gradients come from memory
        held += summed if one.computed_wide != one.stored and not every else 0
    home_s = reductions(plan, micro) * one.home_s
    core_driven_comm_s += home_s * one.home_carried + one.replicas_s * one.replicas_carried
    contended_s += home_s * one.home_contended + one.replicas_s * one.replicas_contended
    price = ParameterPrice(
        gather_params_s,
        home_s + one.replicas_s,
        one.step_s,
        held,
        transient,
        one.gather,
        one.copied,
        one.step_host_s,
        early,
        add_s,
        core_driven_comm_s,
        reduce_per_microbatch_s=home_s if plan.reduce_scatter_every_microbatch else 0.0,
        contended_s=contended_s,
    )
    if not plan.offload:
        return price
    price = price._replace(hosted=hosted_update(plan, mesh.device, one.stored, states, one.step_s))
    sizes = _sizes(one, plan, dtype, micro > 1)
    return _on_host(price, plan, mesh, sizes, gathers(plan, uses, micro), 1 + states)


class _Moved(NamedTuple):
    """Costs of a parameter that do not depend on the number of micro-batches."""

    stored: int
    computed: int
    computed_wide: int
    copied: int
    gather: Conversion
    gather_s: float
    gather_carried: float
    gather_contended: float
    home_s: float = 0.0
    home_carried: float = 0.0
    home_contended: float = 0.0
    replicas_s: float = 0.0
    replicas_carried: float = 0.0
    replicas_contended: float = 0.0
    step_host_s: float = 0.0
    step_s: float = 0.0


@CACHES.memoized(maxsize=1 << 15)
def _moved(
    shape: tuple[int, ...],
    dtype: str,
    grad: bool,
    where: tuple[str, str, str],
    mesh: Mesh,
    travels: str,
    states: int,
    company: float,
) -> _Moved:
    """where: storage and compute layouts and the stored dtype.
    travels: dtype in which the gradient is reduced.
    computed_wide: bytes of the compute layout in the stored dtype.
    """
    storage, compute, kept = Layout.parse(where[0]), Layout.parse(where[1]), where[2]
    rate = mesh.device.memory_bandwidth * mesh.device.achievable_fraction("memory")
    wide = ITEM_BYTES[kept]
    gather = conversion(storage, compute, shape, ITEM_BYTES[dtype], mesh, grad=grad)
    stored = local_bytes(shape, wide, storage, mesh)
    computed = local_bytes(shape, ITEM_BYTES[dtype], compute, mesh)
    computed_wide = local_bytes(shape, wide, compute, mesh)
    cast = kept != dtype
    copied = computed if cast or computed_wide != stored else 0
    gather_s = _way_s(gather, True, shape, company, mesh) + (1.5 * stored / rate if cast else 0.0)
    found = _Moved(stored, computed, computed_wide, copied, gather, gather_s, *_of_compute(gather.forward, mesh))
    if not grad:
        return found
    step_host_s, step_s = update_s(mesh.device, kept, stored, states)
    between, width = scattered_layout(storage, compute), ITEM_BYTES[travels]
    home = conversion(between, compute, shape, width, mesh, grad=True)
    found = found._replace(step_host_s=step_host_s, step_s=step_s)
    carried, contended = _of_compute(home.backward, mesh)
    home_s = _way_s(home, False, shape, company, mesh)
    found = found._replace(home_s=home_s, home_carried=carried, home_contended=contended)
    if between == storage:
        return found
    left = conversion(storage, between, shape, width, mesh, grad=True)
    carried, contended = _of_compute(left.backward, mesh)
    replicas_s = _way_s(left, False, shape, company, mesh)
    return found._replace(replicas_s=replicas_s, replicas_carried=carried, replicas_contended=contended)


class _Sizes(NamedTuple):
    """Bytes: stored on the host; copy: that computes, where no cast or gather makes one; cast: on the device before it
    is cast; summed: of gradients of several micro-batches on the device."""

    stored: int
    copy: int
    cast: int
    summed: int


def _sizes(one: _Moved, plan: ParameterPlan, dtype: str, several: bool = False) -> _Sizes:
    copy, cast = 0 if one.copied else one.computed, one.stored if plan.dtype != dtype else 0
    return _Sizes(one.stored, copy, cast, one.stored if several and one.computed_wide == one.stored else 0)


def _on_host(
    price: ParameterPrice, plan: ParameterPlan, mesh: Mesh, sizes: _Sizes, times: int, others: int = 0
) -> ParameterPrice:
    """The price without the bytes that live on the host.

    others: tensors besides the weight, which are its gradient and states.
    """
    if not plan.offload:
        return price
    stored, copy, cast, summed = sizes
    if price.hosted:
        price = price._replace(step_s=price.hosted.seconds)
    if not plan.on_host:
        return price._replace(static_bytes=price.static_bytes - stored * max(0, others - 1))
    again, on_cpu = plan.reshard_after_forward, mesh.device.kind == "cpu"
    fetch_s, put_s = times * link_s(mesh.device, stored), link_s(mesh.device, stored) if others else 0.0
    return price._replace(
        gather_params_s=price.gather_params_s + fetch_s,
        reduce_grads_s=price.reduce_grads_s + put_s,
        static_bytes=price.static_bytes - stored * (1 + others) + summed + (0 if again else copy),
        transient_bytes=price.transient_bytes + cast + (copy if again else 0),
        prefetched_param_bytes=price.prefetched_param_bytes + (cast + copy if again else 0),
        pending_grad_bytes=max(price.pending_grad_bytes, stored if others else 0),
        core_driven_comm_s=price.core_driven_comm_s + (fetch_s + put_s if on_cpu else 0.0),
        link_s=fetch_s,
        overlapped_s=0.0 if on_cpu else fetch_s + put_s,
    )


def _of_compute(moved: Sequence[Collective], mesh: Mesh) -> tuple[float, float]:
    """(share of a conversion that compute cores carry, share of its seconds by which compute is slowed)."""
    if not moved:
        return 0.0 if mesh.any_overlap else 1.0, 0.0
    total_s = core_driven_comm_s = contended_s = 0.0
    for one in moved:
        axis = mesh.axis(one.axis)
        seconds = collective_s(one.kind, one.bytes, axis)
        total_s += seconds
        if not mesh.overlaps_compute(axis):
            core_driven_comm_s += seconds
        elif mesh.device.kind == "cuda":
            contended_s += seconds * compute_slowdown(axis)
    return (core_driven_comm_s / total_s, contended_s / total_s) if total_s else (0.0, 0.0)


def _way_s(way: Conversion, forward: bool, shape: tuple[int, ...], company: float, mesh: Mesh) -> float:
    """Seconds of a conversion to the compute layout, or of a gradient's reduction: the share of a bucket."""
    ops = [step.forward_op if forward else step.backward_op for step in way.steps]
    seconds, moved = (way.forward_s, way.forward) if forward else (way.backward_s, way.backward)
    cut = forward or [op.kind for op in moving(ops, mesh)] == ["reduce_scatter"]
    if company == 1.0 or shared_op(ops, shape, way.source if cut else way.target, mesh) is None:
        return seconds
    alone_s = collective_s(moved[0].kind, moved[0].bytes, mesh.axis(moved[0].axis))
    return seconds - alone_s + part_of_bucket_s(moved[0], company, mesh, leaves=not forward)


def local_bytes(shape: tuple[int, ...], itemsize: int, layout: Layout, mesh: Mesh) -> int:
    return itemsize * prod(layout.local_shape(shape, mesh.sizes))
