"""Estimates of the memory that a model needs on a cluster, made from few shardings and without a search."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from meshwright.capture.optimizer import STATES
from meshwright.capture.program import ITEM_BYTES, Program
from meshwright.cluster import Cluster, load_cluster
from meshwright.errors import MeshwrightError
from meshwright.pins.methods import ORDERED
from meshwright.planner.chain.lagrangian import ANY_PRICE, chain_at, least_bytes
from meshwright.planner.infeasible.min_memory import MemoryNeeded, smallest_budget
from meshwright.planner.memory.methods import fixed_ways
from meshwright.planner.memory.nested_sharded import refine_nested
from meshwright.planner.memory.options import RematOptions
from meshwright.planner.memory.refine import least_peak
from meshwright.planner.request import MOST_DEVICES
from meshwright.planner.search.keep_all import Candidate
from meshwright.planner.search.task import StageTask
from meshwright.price.parameter import Setting
from meshwright.remat.inner import CHUNKS

TightCandidates = Callable[[Cluster], list[Candidate]]
"""The meshes of a cluster that leave the most memory free; none where the pins do not allow that cluster."""

CUT_UP = "weights and values cut as far as they go"


def training_state_bytes(program: Program, setting: Setting) -> int:
    """Bytes of all parameters, gradients and optimizer states, each held once and not offloaded.

    A lower bound on the memory of all devices together, whatever the number of stages, the sharding and the
    recomputation.
    """
    found: dict[str, int] = {}
    for segment in program.segments:
        for value, name in zip(program.graphs[segment.graph].params, segment.params, strict=True):
            offloaded = setting.offload_of(name, value.grad)
            states = 0 if offloaded else STATES[setting.optimizer]
            copies = 0 if offloaded == "weight" else 2 + states if value.grad else 1
            each = ITEM_BYTES[setting.storage_dtype(value.type.dtype)]
            found[name] = copies * each * prod(value.type.sizes)
    return sum(found.values())


def usable_bytes(cluster: Cluster, memory_bytes: int | None, headroom: float = 0.0) -> int:
    """Bytes of all devices together, each within its limit."""
    each = {device.name: device.limit_bytes(memory_bytes, headroom) for device in cluster.devices}
    return sum(each[name] for name in cluster.device_names())


def estimate_kept(candidate: Candidate) -> MemoryNeeded:
    """Memory of the leanest sharding of a mesh, everything kept.

    The fewest and the most micro-batches are tried: memory is smallest at one of these ends.
    """
    numbers = {candidate.microbatches[0], candidate.microbatches[-1]}
    return min(MemoryNeeded(least_bytes(candidate.shardings(number)), CUT_UP, number) for number in sorted(numbers))


def estimate_by_method(candidate: Candidate, task: StageTask) -> MemoryNeeded:
    """A budget in which the leanest sharding of a mesh fits in the most micro-batches; nothing fits in the task's."""
    program, method, refused_bytes = task.program, task.method, task.budget_bytes
    shardings = candidate.shardings(candidate.microbatches[-1])
    plan = task.assemble(chain_at(shardings, ANY_PRICE), shardings)
    any_way = method in ("auto", "flat")
    ways = RematOptions.of(plan, program, CHUNKS if any_way else ())
    low, segments = max(refused_bytes, ways.static_bytes), len(program.segments)

    def is_ordered_in(budget: int) -> bool:
        return refine_nested(plan, program, ways, budget, method) is not None

    if method in ORDERED:
        # The solver of orders rounds to parts of the budget, so an order may not be found again in what it takes.
        return MemoryNeeded(smallest_budget(is_ordered_in, low, 2 * low, segments), CUT_UP, plan.microbatches)
    if not any_way:
        picked = fixed_ways(program, ways.curves.plan, ways.curves.options, method)
        return MemoryNeeded(ways.predicted(picked, plan.microbatches).peak_bytes, CUT_UP, plan.microbatches)
    flat = MemoryNeeded(least_peak(ways, plan.microbatches), "everything recomputed", plan.microbatches)
    if method == "flat" or plan.world_size > 1 or flat.bytes <= refused_bytes + 1:
        return flat
    # On one device the search looks at this sharding alone, in nested orders too.
    nested = smallest_budget(
        lambda budget: budget >= flat.bytes or refine_nested(plan, program, ways, budget) is not None,
        low,
        flat.bytes,
        segments,
    )
    return min(flat, MemoryNeeded(nested, "layers run forward more than once", plan.microbatches))


def larger_cluster(
    cluster: Cluster, budget: int, tight: TightCandidates, multiple: int, state_bytes: int
) -> Cluster | None:
    """A larger cluster of the same kind on which a plan fits: `kind:n`, n doubled until one does, then bisected.

    Recomputation is not counted, so a smaller one may do.
    multiple: the pins need a multiple of so many devices.
    state_bytes: of the training state, which all devices together have to hold.
    """
    kind, _, count = cluster.name.rpartition(":")
    if not kind or not count.isdigit():
        return None
    each = cluster.device_count // int(count)

    def fitting(n: int) -> Cluster | None:
        larger = load_cluster(f"{kind}:{n}")
        if larger.device_count * budget < state_bytes:
            return None
        return larger if any(_fits(one, budget) for one in tight(larger)) else None

    low = int(count)
    try:
        high = 2 * low
        while (found := fitting(high)) is None:
            low, high = high, 2 * high
            if high * each > MOST_DEVICES:
                return None
        while high - low > 1:
            between = [n for n in range(low + 1, high) if n * each % multiple == 0]
            if not between:
                break
            middle = between[len(between) // 2]
            better = fitting(middle)
            low, high, found = (low, middle, better) if better else (middle, high, found)
    except MeshwrightError:
        return None
    return found


def _fits(candidate: Candidate, budget: int) -> bool:
    """Whether `estimate_kept` is within the budget. The most micro-batches, which mostly take less, are asked first."""
    ends = (candidate.microbatches[-1], candidate.microbatches[0])
    models = (candidate.shardings(number) for number in dict.fromkeys(ends))
    return any(one.least_static() <= budget and least_bytes(one) <= budget for one in models)
