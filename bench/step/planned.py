"""A model, planned for one device and run by the trainer: what `plan.predicted` says of it, and what it takes."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from bench.step.models import Model, model_of
from meshwright.capture import Precision, capture
from meshwright.capture.program import Program
from meshwright.cluster import Device
from meshwright.plan import Plan
from meshwright.planner.infeasible.refusals import NoRoomError
from meshwright.planner.memory.curves import Curves
from meshwright.planner.one_device import fit_curves
from meshwright.runtime.trainer import Trainer, parallelize

TIGHT = 0.6
"""The tight budget, of the peak that keeping all needs."""


@dataclass(frozen=True, slots=True)
class Case:
    """A model reference (`bench.step.models`), its batch and how it is run."""

    name: str
    batch: int
    precision: Precision = "bf16"
    compiled: bool = False

    def __str__(self) -> str:
        return f"{self.name} batch={self.batch} {self.precision} {'compiled' if self.compiled else 'eager'}"


class Planned:
    """One case, captured and priced; its plans by budget."""

    def __init__(self, case: Case, device: Device) -> None:
        self.case, self.device = case, device
        self.model: Model = model_of(case.name)
        module, batch, self.loss = self.model.meta(case.batch)
        self.program: Program = capture(module, batch, self.loss, precision=case.precision)
        self.curves: Curves = fit_curves(self.program, device, precision=case.precision, compile=case.compiled)

    def plan(self, tight: bool = False) -> Plan:
        """The fastest with all memory; or in `TIGHT` of what that takes, or as little more as there is a plan for."""
        roomy = self.curves.within(None)
        if not tight:
            return roomy
        room = int(TIGHT * roomy.predicted.peak_bytes)
        try:
            return self.curves.within(room)
        except NoRoomError as error:
            return self.curves.within(int(1.01 * error.least_bytes))

    def trainer(self, plan: Plan) -> Trainer:
        start_world(self.device.kind)
        torch.manual_seed(0)
        with torch.device(self.device.kind):
            module: nn.Module = self.model.build()
        unit = self.case.compiled
        return parallelize(module.train(), plan, self.loss, compile=unit, device=self.device.kind)

    def data(self) -> dict[str, Tensor]:
        return self.model.data(self.case.batch, torch.device(self.device.kind), self.case.precision)


class Steps:
    """Training steps of a trainer: zero_grad, forward and backward, a fused AdamW."""

    def __init__(self, trainer: Trainer, data: dict[str, Tensor]) -> None:
        self.trainer, self.data = trainer, data
        self.optimizer: torch.optim.Optimizer | None = None

    def __call__(self) -> Tensor:
        if self.optimizer is None:
            self.optimizer = torch.optim.AdamW(self.trainer.parameters(), lr=1e-5, fused=True)
        self.optimizer.zero_grad()
        loss = self.trainer.step(self.data)
        self.optimizer.step()
        return loss

    def park(self) -> None:
        """Gives back gradients and optimizer states."""
        if self.optimizer is not None:
            self.optimizer.zero_grad()
        self.optimizer = None
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def measure(step: Callable[[], Any], seconds: float = 1.0, bursts: int = 5) -> dict[str, float]:
    """The middle of a few bursts of steps back to back; and the peak of allocated bytes."""
    for _ in range(3):
        step()
    synchronize()
    start = time.perf_counter()
    step()
    synchronize()
    count = max(2, int(seconds / bursts / max(1e-4, time.perf_counter() - start)))
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(bursts):
        start = time.perf_counter()
        for _ in range(count):
            step()
        synchronize()
        times.append((time.perf_counter() - start) / count)
    peak = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
    return {"step_s": median(times), "fastest_s": min(times), "slowest_s": max(times), "peak_bytes": float(peak)}


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def start_world(kind: str) -> None:
    """A process group of this process alone."""
    if not dist.is_initialized():
        backend = "nccl" if kind == "cuda" else "gloo"
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)


def as_here(device: Device, asked_s: float = 0.0) -> Device:
    """The profile's device with the memory of the one that is here, and the pace of its host where that is given."""
    if device.kind != "cuda" or not torch.cuda.is_available():
        return device
    total = torch.cuda.get_device_properties(0).total_memory
    return replace(device, memory_bytes=total, launch_s=asked_s or device.launch_s)
