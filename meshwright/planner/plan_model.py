"""`mw.plan`: checks what the user gave, captures the model and plans it, with progress lines."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterable
from typing import cast

from torch import Tensor, nn

from meshwright.capture import Batch, Precision, capture, rows
from meshwright.capture.optimizer import check_optimizer
from meshwright.cluster import Cluster, load_cluster
from meshwright.errors import PlanError, counted
from meshwright.models.joined import joined, joined_batch
from meshwright.models.reference import parse_reference
from meshwright.pins.check import check_pins
from meshwright.pins.constraints import GivenPins, pin_texts
from meshwright.plan import Plan
from meshwright.plan.units import parse_bytes
from meshwright.planner.effort import SIMPLER_WITHIN, check_part, effort_of, headroom_of
from meshwright.planner.model_pins import check_names
from meshwright.planner.plan import make_plan
from meshwright.planner.progress import AFTER_S, Progress

LOGGER = logging.getLogger("meshwright.plan")


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
    pins: GivenPins | None = (),
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
    pins: text such as `"tp=2"`, a list of such, a dict such as `{"tp": 2}`, or Constraints.
    allow: answers to lines of the model that ask for a tensor's value, `"file.py:12=False"`, which are refused
    otherwise; the plan holds them as `answers`.
    simpler_within: of plans whose steps differ by no more than this part the simplest is taken; 0 turns it off.
    effort: how much is searched, `fast`, `default` or `proof`.
    gap: the search ends once its plan is proven to be within this part of the fastest, 0.02 for 2 %;
    `plan.search_log` says what it did. Progress of what takes over a second is written to standard error, and logged
    under `meshwright.plan`: `MESHWRIGHT_LOG=info` shows the log in its place, `MESHWRIGHT_LOG=warning` neither.
    """
    name = ""
    if isinstance(model, str):
        if batch is not None or loss is not None:
            given = "a batch" if batch is not None else "a loss"
            raise PlanError(f"{given} with the model {model!r}", "none: a reference has its own", "leave it out")
        reference = parse_reference(model)
        name = str(reference)
        model, batch, loss = reference.meta(None if global_batch is None else checked_batch(global_batch))
    module: nn.Module = model
    cluster = cluster if isinstance(cluster, Cluster) else load_cluster(cluster)
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
    batch = joined_batch(module, cast(Batch, batch), loss)  # None is refused there
    module, loss = joined(module, loss)
    if texts:
        check_pins(texts, cluster, global_batch or rows(module, batch, loss))
        check_names(texts, module)
    with Progress(_shown(), quiet_s=AFTER_S, prefix="meshwright: ", stops=_interactive()) as progress:

        def doing(what: str) -> None:
            LOGGER.info(what)
            progress.doing(what)

        def on_incumbent(line: str) -> None:
            LOGGER.info("best so far %s", line)
            progress.found(line)

        doing(f"capturing {name or type(module).__name__}")
        program = capture(module, batch, loss, precision=precision, allow=allow)
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
            on_incumbent=on_incumbent,
            on_node=progress.on_node,
        )
    LOGGER.info("%r", found)
    return found


def _shown() -> bool:
    """Whether progress is written: by the first rank alone, and not where `MESHWRIGHT_LOG` is set."""
    return os.environ.get("RANK", "0") == "0" and not os.environ.get("MESHWRIGHT_LOG")


def _interactive() -> bool:
    """Whether this is a prompt or a notebook, where Ctrl-C gives the best plan so far."""
    return hasattr(sys, "ps1")


def checked_batch(samples: int) -> int:
    if type(samples) is not int or samples < 1:
        raise PlanError(f"global_batch {samples!r}", "a whole number of samples, at least 1", "correct it")
    return samples
