"""Plans a practitioner would write by hand, priced by the same model: pins on the same space."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from meshwright.capture.program import Program
from meshwright.cluster import Cluster
from meshwright.errors import PlanError
from meshwright.plan import Plan
from meshwright.solve.plan import make_plan

BASELINES: dict[str, Callable[[int], tuple[str, ...]]] = {
    "data parallel (DDP)": lambda n: (f"dp={n}", "zero=0"),
    "fully sharded (ZeRO-3)": lambda n: (f"dp={n}", "zero=3"),
    "tensor parallel": lambda n: (f"tp={n}",),
}


@dataclass(frozen=True, slots=True)
class Baseline:
    """plan: None where this way of running the model does not exist or does not fit; `why` then says so."""

    name: str
    pins: tuple[str, ...]
    plan: Plan | None
    why: str = ""


def baselines(
    program: Program,
    cluster: Cluster,
    optimizer: str = "adamw",
    precision: str = "fp32",
    memory_bytes: int | None = None,
) -> list[Baseline]:
    found = []
    for name, pins_of in BASELINES.items():
        pins = pins_of(cluster.device_count)
        try:
            plan = make_plan(
                program, cluster, optimizer=optimizer, precision=precision, memory_bytes=memory_bytes, pins=pins
            )
            found.append(Baseline(name, pins, plan))
        except PlanError as error:
            found.append(Baseline(name, pins, None, error.given))
    return found
