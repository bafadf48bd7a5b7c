"""From a Program and a cluster to a Plan: every mesh, every number of micro-batches, the best chain, in writing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from meshwright.capture.program import Program
from meshwright.cluster import Cluster
from meshwright.plan import Plan
from meshwright.price.parameter import Setting, check_optimizer
from meshwright.rules import warn_of_fallbacks
from meshwright.solve.assemble import assemble, name_axes
from meshwright.solve.candidates import allowed_meshes, candidates_on, tight_candidate
from meshwright.solve.frontier import Frontier
from meshwright.solve.joint import joint_search
from meshwright.solve.joint import least_bytes as least_recomputing
from meshwright.solve.mix import Chain
from meshwright.solve.refuse import does_not_fit, least_of
from meshwright.solve.search import Progress, search

ROUNDING = 1e-12
"""A gap below this is that of adding the same seconds in another order."""


def make_plan(
    program: Program,
    cluster: Cluster,
    *,
    model: str = "",
    memory_bytes: int | None = None,
    optimizer: str = "adamw",
    precision: str = "fp32",
    pins: Iterable[str] = (),
    max_axes: int = 2,
    fit: bool = True,
    recompute: bool = True,
    progress: Progress | None = None,
) -> Plan:
    """The fastest plan over all meshes of up to `max_axes` axes of the cluster's devices that fits on each of them.

    `program` is captured in the dtype it computes in: bfloat16 for `bf16` and `mixed`. fit: refuse where none fits;
    otherwise the fastest of the most micro-batches is the answer then. recompute: where memory binds, activations may
    be made again in backward.
    """
    check_optimizer(optimizer)
    warn_of_fallbacks(program)
    texts, setting = tuple(pins), Setting(optimizer, precision)
    meshes = allowed_meshes(cluster, texts, max_axes)
    candidates = candidates_on(program, meshes, texts, setting)
    usable = cluster.mesh((cluster.device_count,)).device.usable_bytes
    budget = min(memory_bytes or usable, usable)
    found = search(candidates, budget, progress)

    def written(chain: Chain, frontier: Frontier) -> Plan:
        plan = assemble(program, cluster, chain, frontier)
        return replace(plan, model=model, memory_bytes=memory_bytes, pins=texts)

    plan = written(found.chain, found.frontier) if found else None
    bound_s = found.bound_s if found else float("inf")
    if recompute and (found is None or found.chain.price):
        others = candidates_on(program, meshes, texts, setting, recompute=True)
        plan, joint_s = joint_search(others, program, budget, written, plan, progress)
        bound_s = min(bound_s, joint_s)
    if plan is None and not fit:
        found = search([replace(one, microbatches=one.microbatches[-1:]) for one in candidates], 1 << 62)
        plan = written(found.chain, found.frontier) if found else None
    if plan is None:
        least = min(least_of(one) for one in candidates)
        if recompute:
            least = min(least, *(least_recomputing(one, program, written) for one in candidates))
        raise does_not_fit(cluster, budget, least, lambda larger: tight_candidate(program, larger, setting))
    step_s = plan.predicted.step_s
    gap = 1.0 - bound_s / step_s if step_s else 0.0
    plan = plan.with_prediction(gap=gap if gap > ROUNDING else 0.0)
    named = name_axes(program, plan)
    named.verify()
    return named
