"""The public entry to planning: a model, a batch, a cluster and a memory limit in; a Plan out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import cast

from torch import Tensor, nn

from meshwright.capture import Batch
from meshwright.capture.precision import Precision
from meshwright.cluster import Cluster, load_cluster
from meshwright.errors import PlanError
from meshwright.models.reference import parse_reference
from meshwright.pins.constraints import Constraints
from meshwright.plan.plan import Plan
from meshwright.planner.effort import SIMPLER_WITHIN
from meshwright.planner.plan_model import checked_batch, plan_model
from meshwright.profile import profile_step as profile
from meshwright.runtime.fail import tell_uncaught


def plan(
    model: nn.Module | str,
    batch: Batch | None = None,
    cluster: str | Cluster = "local:1",
    *,
    memory: str | int | None = None,
    global_batch: int | None = None,
    optimizer: str = "adamw",
    precision: Precision = "fp32",
    compile: bool = False,
    pins: str | Iterable[str] | Constraints | None = (),
    loss: Callable[..., Tensor] | None = None,
    allow: str | Iterable[str] = (),
    simpler_within: float = SIMPLER_WITHIN,
    effort: str = "default",
    gap: float = 0.0,
    headroom: float | None = None,
) -> Plan:
    """The fastest plan that fits.

    model: a module, with a batch of it, which may be on the meta device; or a reference such as `"llama3-8b"` or
    `"hf:qwen3?num_hidden_layers=4"`, of which nothing is allocated, with `global_batch` samples (8; of
    `"file.py:function"` as many as its batch has rows).
    memory: bytes per device (`"20GiB"`), taken at its word; without it all of the device but `headroom`, 0.03 of it
    unless given.
    compile: layers run compiled by inductor, and are priced so.
    pins: text such as `"tp=2"`, a list of such, or Constraints.
    allow: answers to lines of the model that ask for a tensor's value, `"file.py:12=False"`, which are refused
    otherwise; the plan holds them as `answers`.
    simpler_within: of plans whose steps differ by no more than this part the simplest is taken; 0 turns it off.
    effort: how much is searched, `fast`, `default` or `proof`.
    gap: the search ends once its plan is proven to be within this part of the fastest, 0.02 for 2 %;
    `plan.search_log` says what it did. Progress of what takes over a second is written to standard error, and logged
    under `meshwright.plan`: `MESHWRIGHT_LOG=info` shows the log in its place, `MESHWRIGHT_LOG=warning` neither.
    """
    tell_uncaught()
    name = ""
    if isinstance(model, str):
        if batch is not None or loss is not None:
            given = "a batch" if batch is not None else "a loss"
            raise PlanError(f"{given} with the model {model!r}", "none: a reference has its own", "leave it out")
        reference = parse_reference(model)
        name = str(reference)
        model, batch, loss = reference.meta(None if global_batch is None else checked_batch(global_batch))
    return plan_model(
        model,
        cast(Batch, batch),  # None is refused there
        cluster if isinstance(cluster, Cluster) else load_cluster(cluster),
        memory=memory,
        global_batch=global_batch,
        optimizer=optimizer,
        precision=precision,
        compile=compile,
        pins=pins,
        loss=loss,
        allow=allow,
        simpler_within=simpler_within,
        effort=effort,
        gap=gap,
        headroom=headroom,
        name=name,
    )


__all__ = ["plan", "profile"]
