"""Pipelines that a practitioner would write by hand: 1F1B over equal stages, FSDP or tensor parallel inside."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf

from meshwright.capture.program import Program
from meshwright.cluster import Cluster
from meshwright.cluster.enumerate import per_host
from meshwright.errors import PlanError
from meshwright.plan import Plan
from meshwright.predict import predicted
from meshwright.price.parameter import Setting
from meshwright.solve.pipeline.pins import pipeline_pins
from meshwright.solve.pipeline.search import pipeline_search

PARTS = 4
"""Micro-batches for each stage, where the batch has as many: what people begin with."""
MOST_STAGES = 16


@dataclass(frozen=True, slots=True)
class Baseline:
    """One way of running the model. step_s and peak_bytes: None where it does not exist; `why` then says so."""

    name: str
    pins: tuple[str, ...] = ()
    step_s: float | None = None
    peak_bytes: int | None = None
    fits: bool = False
    why: str = ""


def pipelines(
    program: Program, cluster: Cluster, setting: Setting, limit: int, cut: tuple[str, ...] = ()
) -> list[Baseline]:
    """PP + FSDP and PP + TP, each at the best of the usual numbers of stages. cut: a pinned number of micro-batches."""
    sharded = [(*one, "tp=1", "zero=3") for one in _cuts(program, cluster, cut)]
    return [
        _best("PP + FSDP", program, cluster, setting, limit, sharded),
        _best("PP + TP", program, cluster, setting, limit, list(_with_tp(program, cluster, cut))),
    ]


def _cuts(program: Program, cluster: Cluster, cut: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Of one host 2 and 4 stages; of several as many as there are hosts, and half of that."""
    devices, inner = cluster.device_count, per_host(cluster)
    hosts = devices // inner
    wanted = (2, 4) if hosts == 1 else (min(MOST_STAGES, hosts), min(MOST_STAGES, hosts) // 2)
    for stages in dict.fromkeys(wanted):
        if 1 < stages <= len(program.segments) and devices % stages == 0:
            number = max(n for n in range(1, PARTS * stages + 1) if program.batch % n == 0)
            yield (f"pp={stages}", "schedule=1f1b", *(cut or (f"microbatches={number}",)))


def _with_tp(program: Program, cluster: Cluster, cut: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    inner = per_host(cluster)
    for one in _cuts(program, cluster, cut):
        each = cluster.device_count // int(one[0].removeprefix("pp="))
        degrees = [size for size in (8, 4, 2) if each % size == 0 and inner % size == 0]
        yield from ((*one, f"tp={size}", "zero=0") for size in degrees[:1])


def _best(
    name: str, program: Program, cluster: Cluster, setting: Setting, limit: int, ways: list[tuple[str, ...]]
) -> Baseline:
    """The fastest that fits; else that of the fewest bytes."""
    if not ways:
        alone = "one device shares with no other" if cluster.device_count == 1 else "the devices make no equal stages"
        return Baseline(name, why=alone)
    met: list[tuple[tuple[str, ...], Plan]] = []
    why = "no stages were found"
    for way in ways:
        try:
            plan, _ = pipeline_search(
                program, cluster, 1 << 62, setting, pipeline_pins(way), known_s=inf, recompute=False, exact=False
            )
        except PlanError as error:
            why = error.given
            continue
        if plan is not None:
            met.append((way, predicted(replace(plan, compile=True), program) if setting.compile else plan))
    if not met:
        return Baseline(name, ways[0], why=why)
    fitting = [one for one in met if one[1].predicted.peak_bytes <= limit]
    way, plan = (
        min(fitting, key=lambda one: one[1].predicted.step_s)
        if fitting
        else min(met, key=lambda one: one[1].predicted.peak_bytes)
    )
    return Baseline(name, way, plan.predicted.step_s, plan.predicted.peak_bytes, bool(fitting))
