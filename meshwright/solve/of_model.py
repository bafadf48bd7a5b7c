"""From a model and a batch to a Plan: what `mw.plan` and `mw.fit` share."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext

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
from meshwright.solve.effort import SIMPLER_WITHIN, check_part, effort_of, headroom_of
from meshwright.solve.interrupt import STOP
from meshwright.solve.pin_words import check_names
from meshwright.solve.plan import make_plan

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
    pins: str | Iterable[str] | Constraints = (),
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
    tell(f"capturing {name or type(model).__name__}")
    program = capture(model, batch, loss, precision=precision, allow=allow)
    if global_batch is not None:
        program = program.at_batch(global_batch)
    layers, devices = counted(len(program.segments), "layer"), counted(cluster.device_count, "device")
    tell(f"searching plans of {layers} on {devices}")
    with STOP.by_ctrl_c(tell) if _interactive() else nullcontext():
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
            progress=lambda best: tell(f"best so far {best}"),
        )
    LOGGER.info("%r", found)
    return found


def tell(line: str) -> None:
    """What takes long: to the log, and at a prompt or in a notebook to its user too."""
    LOGGER.info(line)
    if _interactive():
        print(f"meshwright: {line}", file=sys.stderr, flush=True)


def _interactive() -> bool:
    """At a prompt, or in a notebook."""
    return hasattr(sys, "ps1")


def checked_batch(samples: int) -> int:
    if type(samples) is not int or samples < 1:
        raise PlanError(f"global_batch {samples!r}", "a whole number of samples, at least 1", "give a larger batch")
    return samples


def pin_texts(pins: str | Iterable[str] | Constraints) -> tuple[str, ...]:
    """Pins in any of the ways that users give them, as text."""
    if isinstance(pins, Constraints):
        return pins.pins()
    if isinstance(pins, str):
        return (pins,)
    if isinstance(pins, Mapping):
        return Constraints(**pins).pins()
    if not isinstance(pins, Iterable):
        raise PlanError(f"pins={pins!r}", 'text such as "tp=2", or a list of such', "correct it, or give no pins")
    return tuple(pins)
