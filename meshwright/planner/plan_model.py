"""From a model and a batch to a Plan: what `mw.plan` and `mw.fit` share."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterable, Mapping

from torch import Tensor, nn

from meshwright.capture import Batch, Precision, capture, rows
from meshwright.capture.optimizer import check_optimizer
from meshwright.cluster import Cluster
from meshwright.errors import PlanError, counted
from meshwright.models.joined import joined, joined_batch
from meshwright.pins.check import check_pins
from meshwright.pins.constraints import Constraints
from meshwright.plan import Plan
from meshwright.plan.units import parse_bytes
from meshwright.planner.effort import SIMPLER_WITHIN, check_part, effort_of, headroom_of
from meshwright.planner.model_pins import check_names
from meshwright.planner.plan import make_plan
from meshwright.planner.progress import AFTER_S, Progress

LOGGER = logging.getLogger("meshwright.plan")


def plan_model(
    model: nn.Module,
    batch: Batch,
    cluster: Cluster,
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
    name: str = "",
) -> Plan:
    """The fastest plan that fits, as `mw.plan` says. name: the model's reference, where it has one."""
    if global_batch is not None:
        checked_batch(global_batch)
    effort_of(effort)
    check_part("simpler_within", simpler_within)
    check_part("gap", gap)
    memory_bytes = parse_bytes(memory)
    headroom_of(memory, headroom)
    texts = pin_texts(pins)
    check_pins(texts, cluster, global_batch)
    check_optimizer(optimizer)
    batch = joined_batch(model, batch, loss)
    model, loss = joined(model, loss)
    if texts:
        check_pins(texts, cluster, global_batch or rows(model, batch, loss))
        check_names(texts, model)
    with Progress(_shown(), quiet_s=AFTER_S, prefix="meshwright: ", stops=_interactive()) as progress:

        def doing(what: str) -> None:
            LOGGER.info(what)
            progress.doing(what)

        def better(best: str) -> None:
            LOGGER.info("best so far %s", best)
            progress.found(best)

        doing(f"capturing {name or type(model).__name__}")
        program = capture(model, batch, loss, precision=precision, allow=allow)
        if global_batch is not None:
            program = program.at_batch(global_batch)
        layers, devices = counted(len(program.segments), "layer"), counted(cluster.device_count, "device")
        doing(f"searching plans of {layers} on {devices}")
        found = make_plan(
            program,
            cluster,
            model=name,
            memory_bytes=memory_bytes,
            optimizer=optimizer,
            precision=precision,
            compile=compile,
            pins=texts,
            simpler_within=simpler_within,
            effort=effort,
            gap=gap,
            headroom=headroom,
            progress=better,
            looking=progress.looking,
        )
    LOGGER.info("%r", found)
    return found


def _shown() -> bool:
    """Progress is written by the first rank alone, and not where the log has it or is asked for less."""
    return os.environ.get("RANK", "0") == "0" and not os.environ.get("MESHWRIGHT_LOG")


def _interactive() -> bool:
    """At a prompt, or in a notebook: Ctrl-C gives the best plan so far."""
    return hasattr(sys, "ps1")


def checked_batch(samples: int) -> int:
    if type(samples) is not int or samples < 1:
        raise PlanError(f"global_batch {samples!r}", "a whole number of samples, at least 1", "give a larger batch")
    return samples


def pin_texts(pins: str | Iterable[str] | Constraints | None) -> tuple[str, ...]:
    """Pins in any of the ways that users give them, as text."""
    if pins is None:
        return ()
    if isinstance(pins, Constraints):
        return pins.pins()
    if isinstance(pins, str):
        return (pins,)
    if isinstance(pins, Mapping):
        return Constraints(**pins).pins()
    if not isinstance(pins, Iterable):
        raise PlanError(f"pins={pins!r}", 'text such as "tp=2", or a list of such', "correct it, or give no pins")
    return tuple(pins)
