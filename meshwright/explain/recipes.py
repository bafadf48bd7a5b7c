"""Recipes that people know, such as DDP, FSDP and tensor parallelism, priced as plans under pins.

A recipe is taken at its best number of micro-batches, or the pinned one, and at its best tensor-parallel degree inside
a host. Activations are kept unless its name says otherwise. The planner's search does not see recipes.

Recipes of data parallelism alone are predicted as plans are. Peaks of others are rough counts, some percent too high,
except near the limit. Which number of micro-batches fits is decided at prices per byte, not to the last byte, since the
exact search would take most of planning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import replace

from meshwright.capture.program import Program
from meshwright.cluster import Cluster, collective_s
from meshwright.cluster.enumerate import per_host
from meshwright.errors import PlanError
from meshwright.explain.pace import MUCH, is_host_bound
from meshwright.explain.pipeline_recipes import Baseline, pipelines
from meshwright.pins.meshes import allowed_meshes
from meshwright.plan import Plan
from meshwright.planner.chain.lagrangian import chain_at
from meshwright.planner.effort import HEADROOM, ROUGH
from meshwright.planner.memory.refine import refine
from meshwright.planner.model_pins import experts_of
from meshwright.planner.one_device import one_device_search, room_bytes
from meshwright.planner.realize import draft
from meshwright.planner.request import PlanRequest
from meshwright.planner.search.keep_all import Candidate, FoundChain, anyway, search
from meshwright.planner.space.candidates import candidates_on
from meshwright.predict import predicted
from meshwright.price.parameter import Setting

AXES = 3

PinSet = tuple[str, ...]
"""Pins of one variant of a recipe."""

Searchable = list[Candidate] | PlanError
"""Candidates that the pins allow, or why there are none."""

SERVER = "parameter server"
FSDP = "FSDP (ZeRO-3)"
CHECKPOINTING = "full checkpointing"
CHECKPOINTED = f"FSDP + {CHECKPOINTING}"
ONE_DEVICE = {"no checkpointing": "keep", "selective checkpointing": "selective", CHECKPOINTING: "full"}

__all__ = ["Baseline", "baselines"]


def baselines(
    program: Program,
    cluster: Cluster,
    optimizer: str = "adamw",
    precision: str = "fp32",
    memory_bytes: int | None = None,
    pins: tuple[str, ...] = (),
    compile: bool = False,
    stages: bool = True,
    headroom: float = HEADROOM,
    may_go_on: Callable[[], bool] = lambda: True,
) -> list[Baseline]:
    """Every recipe for a program on a cluster, with its figures or the reason why it is impossible.

    pins: of the plan next to which recipes are shown; a pinned number of micro-batches holds for all.
    stages: pipelines are priced too.
    headroom: part of each device that is left free where there is no limit.
    may_go_on: asked before each recipe; the rest is returned without figures once it says no.
    """
    setting = Setting(optimizer, precision, compile=compile)
    limit = cluster.mesh((cluster.device_count,)).device.limit_bytes(memory_bytes, headroom)
    cut = tuple(text for text in pins if text.startswith(("microbatch=", "microbatches=")))
    if cluster.device_count == 1:
        return _on_one_device(program, cluster, setting, memory_bytes, cut, headroom, may_go_on)
    found: list[Baseline] = []
    ddp = None
    for name, ways in _ways(cluster, experts_of(program)):
        if isinstance(ways, str):
            found.append(Baseline(name, why=ways))
            continue
        if not may_go_on():
            found += [Baseline(name), *([Baseline(CHECKPOINTED)] if name == FSDP else [])]
            continue
        searched = {way: _candidates(program, cluster, (*way, *cut), setting) for way in ways}
        best, met = _best(name, searched, limit)
        if met is not None and (compile or _is_cheap(best, limit)):
            plan = replace(draft(program, cluster, met.chain, met.shardings), compile=compile)
            plan = predicted(plan, program, listed=name == "DDP")  # its collectives are those of a server
            ddp = ddp or (plan if name == "DDP" else None)
            best = _priced(best, plan, limit)
        found.append(best)
        if name == FSDP:
            found.append(_checkpointed(program, cluster, limit, (*ways[0], *cut), searched[ways[0]]))
    found.insert(1, _parameter_server(found[0], ddp))
    return [*found, *pipelines(program, cluster, setting, limit, cut, may_go_on)] if stages else found


def _is_cheap(baseline: Baseline, limit: int) -> bool:
    """Whether the recipe is predicted as a plan: its layers are traced for others anyway, or it is near the limit."""
    data_parallel = not any(text.startswith("tp=") for text in baseline.pins)
    return data_parallel or limit < (baseline.peak_bytes or 0) <= limit * ROUGH


def _priced(baseline: Baseline, plan: Plan, limit: int) -> Baseline:
    made = plan.predicted
    return replace(
        baseline,
        step_s=made.step_s,
        peak_bytes=made.peak_bytes,
        fits=made.peak_bytes <= limit,
        microbatches=plan.microbatches,
        host_bound=is_host_bound(made),
        rough=False,
    )


def _checkpointed(program: Program, cluster: Cluster, limit: int, way: PinSet, candidates: Searchable) -> Baseline:
    """FSDP with full activation checkpointing, in the fewest micro-batches that fit: each gathers all weights."""
    name, pins = CHECKPOINTED, (*way, "recompute=full")
    if isinstance(candidates, PlanError):
        return Baseline(name, pins, why=_why(candidates))
    for candidate in candidates:
        for number in candidate.microbatches:
            shardings = candidate.shardings(number)
            plan = draft(program, cluster, chain_at(shardings, 0.0), shardings)
            found = refine(plan, program, limit, method="full")
            if found is not None:
                return _priced(Baseline(name, pins), found, limit)
    return Baseline(name, pins, why="it fits in no number of micro-batches")


def _on_one_device(
    program: Program,
    cluster: Cluster,
    setting: Setting,
    memory_bytes: int | None,
    cut: PinSet,
    headroom: float,
    may_go_on: Callable[[], bool],
) -> list[Baseline]:
    """Recipes of one device, which differ in activation checkpointing."""
    device, found = cluster.devices[0], []
    limit = device.limit_bytes(room_bytes(memory_bytes, device), headroom)  # as of the plan
    for name, method in ONE_DEVICE.items():
        if not may_go_on():
            found.append(Baseline(name))
            continue
        request = PlanRequest(
            program, cluster, memory_bytes=memory_bytes, setting=setting, fit=False, headroom=headroom
        )
        plan = one_device_search(request, cut, method)
        found.append(_priced(Baseline(name, (*cut, f"recompute={method}")), plan, limit))
    return found


def _candidates(program: Program, cluster: Cluster, pins: tuple[str, ...], setting: Setting) -> Searchable:
    try:
        return candidates_on(program, allowed_meshes(cluster, pins, AXES), pins, setting, few=True)
    except PlanError as error:
        return error


def _best(name: str, ways: Mapping[PinSet, Searchable], limit: int) -> tuple[Baseline, FoundChain | None]:
    """The fastest variant of a recipe that fits, found in one search; else the one of the fewest bytes."""
    offered = [(way, one) for way, found in ways.items() if not isinstance(found, PlanError) for one in found]
    refused = [error for error in ways.values() if isinstance(error, PlanError)]
    tried: list[tuple[PinSet, FoundChain]] = []
    try:
        found = search([one for _, one in offered], limit, exactly=False).simplest
        tried += [(offered[found.place][0], found)] if found else []
        for way in ways if not tried else ():
            over_budget = anyway([one for other, one in offered if other == way]).simplest
            tried += [(way, over_budget)] if over_budget else []
    except PlanError as error:
        refused.append(error)
    if not tried:
        return Baseline(name, next(iter(ways)), why=_why(refused[0])), None
    way, met = min(tried, key=lambda one: one[1].chain.peak_bytes)
    chain = met.chain
    fits = chain.peak_bytes <= limit
    figures = chain.seconds, chain.peak_bytes, fits
    bound = chain.host_s > MUCH * chain.seconds
    return Baseline(name, way, *figures, microbatches=chain.microbatches, host_bound=bound, rough=True), met


def _why(error: PlanError) -> str:
    """The text of a refusal, without its advice on pins, which the user did not give."""
    return error.given if "pin" in error.expected else f"{error.given}; it needs {error.expected}"


def _ways(cluster: Cluster, experts: Set[int]) -> Iterator[tuple[str, list[PinSet] | str]]:
    """(name, its variants, or why the cluster has none) of every recipe but pipelines.

    experts: numbers of experts of the model's mixtures. Recipes of data parallelism alone do not shard them.
    """
    n = cluster.device_count
    whole = ("ep=1",) if experts else ()
    yield "DDP", [(f"mesh={n}", f"dp={n}", "zero=0", *whole)]
    for stage in (1, 2, 3):
        yield FSDP if stage == 3 else f"ZeRO-{stage}", [(f"mesh={n}", f"dp={n}", f"zero={stage}", *whole)]
    inner = per_host(cluster)
    degrees = [size for size in range(2, inner + 1) if n % size == 0 and inner % size == 0]
    if experts:
        sizes = [ep for ep in degrees if all(one % ep == 0 for one in experts)]
        for name, zero in {"DDP + EP": 0, "FSDP + EP": 3}.items():
            spread = [(*_split(n, ep, "ep"), f"zero={zero}") for ep in sizes[-1:]]
            yield name, spread or "no number of devices in a host divides the experts"
    hybrid: list[PinSet] = (
        [(f"mesh={n // inner}x{inner}", f"dp={n}", f"zero=3:{inner}", *whole)] if 1 < inner < n else []
    )
    yield "HSDP", hybrid or _why_not(n, inner, "one host has no others to be whole on")
    none = _why_not(n, inner, f"no part of {inner} devices of a host divides all {n}")
    yield "TP", [(*_split(n, tp), "zero=0", "sp=off") for tp in degrees] or none
    yield "TP + SP", [(*_split(n, tp), "zero=0", "sp=on") for tp in degrees] or none
    flat = [(*_split(n, tp), "zero=3") for tp in degrees if tp < n]
    yield "FSDP + TP", flat or (f"{n} devices make no two axes of several each" if degrees else none)


def _why_not(n: int, inner: int, otherwise: str) -> str:
    """Why nothing can be sharded within a host."""
    return "one device shares with no other" if n == 1 else "a host has one device" if inner == 1 else otherwise


def _split(n: int, size: int, axis: str = "tp") -> PinSet:
    if size == n:
        return f"mesh={n}", f"{axis}={n}"
    return f"mesh={n // size}x{size}", f"dp={n // size}", f"{axis}={size}"


def _parameter_server(ddp: Baseline, plan: Plan | None) -> Baseline:
    """Data parallelism through a parameter server: one device receives all gradients and sends all parameters."""
    if plan is None or plan.world_size == 1:
        return Baseline(SERVER, why=ddp.why or ("one device has no server" if plan else ""))
    axis, found = plan.mesh.axes[0], plan.predicted
    # In DDP's buckets. All wait for the server, so a message takes no less than handing the same to everyone at once.
    sent = [item.bytes for item in found.collectives if item.kind == "all_reduce"]
    each_s = (max(collective_s(kind, size, axis) for kind in ("send", "broadcast")) for size in sent)
    added_s = 3 * sum(sent) / (plan.mesh.device.memory_bandwidth * plan.mesh.device.achievable_fraction("memory"))
    step_s = found.step_s + found.hidden_s - found.parameters_s + (plan.world_size - 1) * (2 * sum(each_s) + added_s)
    return Baseline(SERVER, (), step_s, found.peak_bytes, ddp.fits, microbatches=ddp.microbatches)
