"""`mw.fit`: one device and a budget in bytes of real peak memory; what to keep, recompute and chunk is found."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import torch
from torch import Tensor, nn

from meshwright.capture import Batch, Precision, capture
from meshwright.capture.optimizer import check_optimizer
from meshwright.capture.program import Program
from meshwright.cluster import Device, Mesh, load_cluster
from meshwright.cluster.device_table import GPUS
from meshwright.models.joined import joined, joined_batch
from meshwright.plan import Plan
from meshwright.plan.units import parse_bytes, show_bytes
from meshwright.runtime.trainer import Trainer, parallelize
from meshwright.solve.memory.curves import Curves, curves
from meshwright.solve.memory.methods import check_method
from meshwright.solve.memory.plan import one_device_plan
from meshwright.solve.memory.refuse import NoRoomError

REFERENCE = "H200-SXM-141GB"
LOSS, LOSS_BYTES = 0.02, 400 << 20
"""What a GPU's allocator may lose of a budget to pieces that fit nothing: a part of it, and so many bytes more."""


def fit(
    model: nn.Module,
    batch: Batch,
    memory: str | int,
    *,
    loss: Callable[..., Tensor] | None = None,
    optimizer: str = "adamw",
    precision: Precision = "fp32",
    compile: bool = False,
    method: str = "auto",
    copy: bool = False,
    allow: str | Iterable[str] = (),
) -> Trainer:
    """A trainer on this process's device that stays inside `memory` (`"20GiB"`) and is as fast as it can be so.

    The model is adopted, and may be kept: its parameters are the trainer's. `copy=True` leaves it as it is; where it is
    on a GPU, its weights are then not in the budget.

    The budget covers parameters, gradients, optimizer state, activations, what kernels hold while they run and what the
    allocator loses; not the CUDA context. `compile`: each distinct segment by inductor. `method`: what saves memory, by
    its name (`solve.memory.methods`): `keep`, `full`, `selective`, `sqrt`, `rotor` as published; ours as `flat`, with
    every segment forward once, as `nested`, or as `auto`, whichever is faster. `allow`: as of `mw.plan`.
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
    allow: str | Iterable[str] = (),
) -> Plan:
    """The plan of `fit` for a device that need not be here. Raises PlanError that names the least possible."""
    check_method(f"method {method!r}", method)
    check_optimizer(optimizer)
    batch = joined_batch(model, batch, loss)
    model, loss = joined(model, loss)
    program = capture(model, batch, loss, precision=precision, allow=allow)
    found = fit_curves(program, device, optimizer=optimizer, precision=precision, compile=compile)
    unused = unused_bytes(model, program)
    found = replace(found, static_bytes=found.static_bytes + unused, beside_bytes=found.beside_bytes + unused)
    budget = parse_bytes(memory)
    room = room_bytes(budget, device)
    try:
        return replace(found.within(room, method), memory_bytes=budget)
    except NoRoomError as error:
        if budget is None or room == budget:
            raise
        least = error.least_bytes
        needed = budget_bytes(least, device)
        rest = error.expected.partition(": ")[2]
        raise NoRoomError(
            f"no plan fits{'' if method == 'auto' else f' by {method}'} in {show_bytes(budget)} on one device "
            f"({device.name})",
            f"{needed:,} bytes ({show_bytes(needed)}), which do: {show_bytes(needed - least)} of it may be lost by the "
            f"allocator{f', and of the rest {rest}' if rest else ''}",
            error.todo,
            needed,
        ) from error


def room_bytes(budget: int | None, device: Device) -> int | None:
    """What of a budget a plan may fill: on a GPU, less what its allocator may lose."""
    if budget is None or device.kind != "cuda":
        return budget
    return int(budget * (1 - LOSS)) - min(LOSS_BYTES, budget // 20)


def budget_bytes(room: int, device: Device) -> int:
    """The smallest budget of which a plan may fill so much."""
    low, high = room, 2 * room + LOSS_BYTES
    while low < high:
        middle = (low + high) // 2
        if (room_bytes(middle, device) or 0) >= room:
            high = middle
        else:
            low = middle + 1
    return low


def fit_curves(
    program: Program, device: Device, *, optimizer: str = "adamw", precision: Precision = "fp32", compile: bool = False
) -> Curves:
    """Every budget's plan at once: `.within(bytes)`."""
    mesh = one_device_mesh(device)
    plan = one_device_plan(
        program, mesh, cluster=device.name, optimizer=optimizer, precision=precision, compile=compile
    )
    return curves(program, plan, device, fused=compile)


def unused_bytes(model: nn.Module, program: Program) -> int:
    """Of parameters that the loss does not depend on: a trainer keeps them as they are."""
    used = {name for parameter in program.parameters for name in (parameter.name, *parameter.aliases)}
    names = dict(model.named_parameters(remove_duplicate=False))
    idle = {id(parameter): parameter for name, parameter in names.items() if name not in used}
    return sum(parameter.numel() * parameter.element_size() for parameter in idle.values())


def one_device_mesh(device: Device) -> Mesh:
    return replace(load_cluster("local:1").mesh((1,)), device=device).renamed(("rep",))


def this_device() -> Device:
    """The GPU that torch sees first, by its name; a CPU where there is none. An unknown GPU is taken for the fastest
    one known, with its own memory."""
    if not torch.cuda.is_available():
        return load_cluster("local:1").mesh((1,)).device
    words = torch.cuda.get_device_name().replace("NVIDIA", "").split()
    named = [entry.device for name, entry in GPUS.items() if words and name.startswith(words[0])]
    found = named[0] if named else GPUS[REFERENCE].device
    total = torch.cuda.get_device_properties(0).total_memory
    return replace(found, memory_bytes=total)
