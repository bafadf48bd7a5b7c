"""The public entry to planning: a model, a batch, a cluster and a memory limit in; a Plan out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from torch import Tensor, nn

from meshwright.capture import Batch, capture
from meshwright.cluster import Cluster, load_cluster
from meshwright.errors import PlanError
from meshwright.plan.plan import Plan
from meshwright.solve.plan import make_plan

UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def plan(
    model: nn.Module,
    batch: Batch,
    cluster: str | Cluster = "local:1",
    *,
    memory: str | int | None = None,
    global_batch: int | None = None,
    optimizer: str = "adamw",
    precision: str = "fp32",
    pins: Iterable[str] = (),
    loss: Callable[..., Tensor] | None = None,
) -> Plan:
    """The fastest plan that fits. `memory`: bytes per device (`"20GiB"`); `batch` may be on the meta device."""
    if precision != "fp32":
        raise PlanError(f"precision {precision!r}", "'fp32', the only one that runs so far", "plan with fp32")
    program = capture(model, batch, loss)
    if global_batch is not None:
        program = program.at_batch(global_batch)
    found = load_cluster(cluster) if isinstance(cluster, str) else cluster
    return make_plan(program, found, memory_bytes=parse_bytes(memory), optimizer=optimizer, pins=pins)


def parse_bytes(text: str | int | None) -> int | None:
    """`20GiB`, `512MB` or a number of bytes."""
    if text is None or isinstance(text, int):
        return text
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMG]i?B|B)?\s*", text)
    if match is None or float(match[1]) <= 0:
        raise PlanError(f"memory {text!r}", f"a positive size such as 20GiB; units: {', '.join(UNITS)}", "correct it")
    return int(float(match[1]) * UNITS[match[2] or "B"])
