"""`mw.fit`: `mw.plan` for the device of this process, and the trainer that runs it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import torch
from torch import Tensor, nn

from meshwright.capture import Batch, Precision
from meshwright.capture.batch import check_given
from meshwright.cluster import Device, load_cluster
from meshwright.cluster.detect.devices import known_name
from meshwright.cluster.device_table import GPUS
from meshwright.cluster.launch import launch_s
from meshwright.pins.constraints import GivenPins, pin_texts
from meshwright.pins.methods import WORD, check_method
from meshwright.plan import Plan
from meshwright.planner import plan_model
from meshwright.planner.one_device import one_device_cluster
from meshwright.runtime.trainer import Trainer, parallelize

REFERENCE = "H200-SXM-141GB"


def fit(
    model: nn.Module,
    batch: Batch,
    memory: str | int | None = None,
    *,
    loss: Callable[..., Tensor] | None = None,
    optimizer: str = "adamw",
    precision: Precision = "fp32",
    compile: bool = False,
    method: str = "auto",
    pins: GivenPins = (),
    copy: bool = False,
    allow: str | Iterable[str] = (),
) -> Trainer:
    """A trainer on this process's device that stays inside `memory` (`"20GiB"`; without it all of the device but 3 %)
    and is as fast as it can be so.

    The model is adopted, and may be kept: its parameters are the trainer's. `copy=True` leaves it as it is; where it is
    on a GPU, its weights are then not in the budget.

    The budget covers parameters, gradients, optimizer state, activations, what kernels hold while they run and what the
    allocator loses; not the CUDA context. `compile`: each distinct segment by inductor. `method`: what saves memory, by
    its name (`planner.memory.methods`): `keep`, `full`, `selective`, `sqrt`, `rotor` as published; ours as `flat`, with
    every segment forward once, as `nested`, or as `auto`, whichever is faster. `pins`, `allow`: as of `mw.plan`;
    `pins="microbatch=1"` runs the batch as a whole.
    """
    plan = fit_plan(
        model,
        batch,
        memory,
        loss=loss,
        optimizer=optimizer,
        precision=precision,
        device=this_device(),
        compile=compile,
        method=method,
        pins=pins,
        allow=allow,
    )
    return parallelize(model, plan, loss, copy=copy)


def fit_plan(
    model: nn.Module,
    batch: Batch,
    memory: str | int | None,
    *,
    device: Device,
    loss: Callable[..., Tensor] | None = None,
    optimizer: str = "adamw",
    precision: Precision = "fp32",
    compile: bool = False,
    method: str = "auto",
    pins: GivenPins = (),
    allow: str | Iterable[str] = (),
) -> Plan:
    """The plan of `fit` for a device that need not be here. Raises PlanError that names the least possible."""
    check_method(f"method {method!r}", method)
    check_given(model, batch, loss)
    texts = pin_texts(pins)
    return plan_model.plan(
        model,
        batch,
        one_device_cluster(device),
        memory=memory,
        optimizer=optimizer,
        precision=precision,
        compile=compile,
        pins=texts if method == "auto" else (*texts, f"{WORD}={method}"),
        loss=loss,
        allow=allow,
    )


def this_device() -> Device:
    """The GPU that torch sees first, by its name; a CPU where there is none. An unknown GPU is taken for the fastest
    one known. Memory, and the pace of the host that launches its kernels, are this machine's."""
    if not torch.cuda.is_available():
        return load_cluster("local:1").mesh((1,)).device
    found = GPUS[known_name(torch.cuda.get_device_name()) or REFERENCE].device
    total = torch.cuda.get_device_properties(0).total_memory
    return replace(found, memory_bytes=total, launch_s=launch_s(torch.device("cuda", torch.cuda.current_device())))
