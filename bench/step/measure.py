"""Seconds of ops and of whole eager training steps on this device, calibrated in the same run."""

from __future__ import annotations

import gc
import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch

from bench.step.cases import PRECISIONS, models
from meshwright.capture.targets import call
from meshwright.cluster.calibrate.clock import clock_for
from meshwright.cluster.calibrate.command import nominal
from meshwright.cluster.calibrate.measure import calibrate
from meshwright.cluster.calibrate.pace import Pace
from meshwright.models.reference import parse_reference

BURST_S = 0.04


def measure(cases: dict[str, Any], which: str, seconds: float, device_name: str, path: str) -> dict[str, Any]:
    start = time.perf_counter()
    device = torch.device(device_name)

    def say(text: str) -> None:
        print(f"[{time.perf_counter() - start:6.1f} s] {text}", file=sys.stderr, flush=True)

    def begin(text: str) -> None:
        say(f"{text}, on core {pinned(device)}")

    profile = calibrate(device, nominal(device), begin)
    found: dict[str, Any] = {"torch": torch.__version__, "profile": profile, "ops": [], "steps": {}}
    write(path, found)
    for case in cases["ops"]:
        try:
            found["ops"].append(measure_op(case, device))
        except Exception as error:
            found["ops"].append({"error": f"{type(error).__name__}: {error}"[:200]})
    say(f"{len(found['ops'])} ops")
    write(path, found)
    steps, found["steps"] = trained(which, device)
    say(f"{len(steps)} models to step")
    errors = dict(found["steps"])
    for bursts in measure_steps(steps, device, seconds, begin):
        found["steps"] = errors | bursts
        write(path, found)
    found["seconds"] = time.perf_counter() - start
    return found


def measure_op(case: dict[str, Any], device: Any) -> dict[str, float]:
    """Seconds of device time, forward and backward."""
    clock, op = clock_for(device), case["op"]
    tensors = {name: _operand(op, i, case["operands"], device) for i, name in enumerate(op.operands())}
    run = lambda: call(op, tensors, device)  # noqa: E731
    row = {"forward_s": clock.device_s(run), "backward_s": 0.0}
    wrt = list({id(t): t for t in tensors.values() if t.requires_grad}.values())
    result = run()[0]
    if wrt and result.requires_grad:
        gradient = torch.randn_like(result)
        row["backward_s"] = clock.device_s(lambda: torch.autograd.grad(result, wrt, gradient, retain_graph=True))
    return row


def _operand(op: Any, index: int, operands: list[Any], device: Any) -> Any:
    value = operands[index]
    shape, dtype = value.type.sizes, getattr(torch, value.type.dtype)
    if value.type.is_float:
        if "attention" in op.target and len(shape) == 4 and index < 3:
            b, h, s, d = shape
            return torch.randn(b, s, h, d, device=device).to(dtype).transpose(1, 2).requires_grad_(value.grad)
        return torch.randn(shape, device=device).to(dtype).requires_grad_(value.grad)
    if "grouped" in op.target:
        rows = operands[0].type.sizes[0]
        return (torch.arange(1, shape[0] + 1, device=device) * (rows // shape[0])).to(dtype)
    high = 2
    if "embedding" in op.target or "index" in op.target:
        high = operands[0].type.sizes[0]
    if "experts" in op.target:
        high = operands[3].type.sizes[0]
    if "cross_entropy" in op.target:
        high = operands[0].type.sizes[1]
    return torch.randint(0, high, shape, device=device).to(dtype)


@dataclass
class Step:
    """A training step: zero_grad, forward, backward, AdamW. marks: when each of its phases was asked for."""

    model: Any
    batch: dict[str, Any]
    optimizer: Any
    once_s: float = 0.0
    marks: list[float] = field(default_factory=list)

    def __call__(self) -> None:
        self.marks.append(time.perf_counter())
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.model(**self.batch)
        self.marks.append(time.perf_counter())
        loss.backward()
        self.marks.append(time.perf_counter())
        self.optimizer.step()
        self.marks.append(time.perf_counter())

    def several(self, count: int, device: torch.device) -> float:
        """Seconds of one among so many."""
        settle(device)
        self.marks.clear()
        start = time.perf_counter()
        for _ in range(count):
            self()
        settle(device)
        return (time.perf_counter() - start) / count

    def phases(self) -> list[float]:
        rows = [self.marks[i : i + 4] for i in range(0, len(self.marks), 4)]
        return [median(column) for column in zip(*([b - a for a, b in pairwise(row)] for row in rows), strict=True)]


def trained(which: str, device: torch.device) -> tuple[dict[str, Step], dict[str, Any]]:
    """Every model at its batches, warm; and what went wrong."""
    found: dict[str, Step] = {}
    errors: dict[str, Any] = {}
    for name, batches in models(which).items():
        for precision in PRECISIONS:
            reference = parse_reference(name)
            dtype = torch.bfloat16 if precision == "bf16" else torch.float32
            settings = dict(reference.settings)
            high = settings.get("vocab") or settings.get("classes") or 100
            with torch.device(device):
                model = reference.build().to(dtype).train()
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
            for size in batches:
                where = f"{name} batch={size} {precision}"
                with torch.device(device):
                    shapes = reference.shapes(size).items()
                    batch = {n: _batch_tensor(shape, kind, dtype, high) for n, (shape, kind) in shapes}
                try:
                    step = Step(model, batch, optimizer)
                    step.several(3, device)
                    step.once_s = step.several(2, device)
                    found[where] = step
                except Exception as error:
                    errors[where] = {"error": f"{type(error).__name__}: {error}"[:300]}
    return found, errors


def measure_steps(
    steps: dict[str, Step], device: torch.device, seconds: float, begin: Callable[[str], None]
) -> Iterator[dict[str, Any]]:
    """In turns, a few of each at a time, the host's pace before and after: what disturbs disturbs all. What takes as
    long every time is left alone after a few. What was seen so far, after each round."""
    gc.collect()
    gc.freeze()  # what this bench keeps is no part of a step
    pace, rng, order = Pace(device), random.Random(0), list(steps)
    bursts: dict[str, list[dict[str, float]]] = {where: [] for where in steps}
    end, number = time.perf_counter() + seconds, 0
    while time.perf_counter() < end or number < 3:
        number += 1
        begin(f"round {number}")
        rng.shuffle(order)
        before_s = pace.now_s()
        for where in order:
            step = steps[where]
            step.several(1, device)
            took_s = step.several(max(3, min(12, int(BURST_S / step.once_s))), device)
            forward_s, backward_s, optimizer_s = step.phases()
            after_s = pace.now_s()
            burst = {"step_s": took_s, "pace_s": (before_s + after_s) / 2, "change": after_s / before_s - 1}
            burst |= {"forward_s": forward_s, "backward_s": backward_s, "optimizer_s": optimizer_s}
            bursts[where].append(burst)
            before_s = after_s
        order = [where for where in order if not _settled([burst["step_s"] for burst in bursts[where]])]
        yield {where: {"bursts": each} for where, each in bursts.items()}


def _settled(times: list[float]) -> bool:
    return len(times) >= 4 and max(times) <= 1.01 * min(times)


def settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _batch_tensor(shape: tuple[int, ...], kind: str, dtype: Any, high: int) -> Any:
    if kind.startswith("float"):
        return torch.randn(shape, dtype=dtype)
    return torch.randint(0, high, shape, dtype=getattr(torch, kind))


def pinned(device: torch.device) -> int:
    """Holds this process to the core on which asking for small ops takes least just now.

    Neighbours of a virtual machine make some cores half as fast as others. A step's forward and backward are asked for
    by two threads, one after the other: on two cores each would have a pace of its own.
    """
    one = torch.ones(1, device=device)
    took = dict.fromkeys(_CORES, 0.0)
    for core in [*took, *took]:
        os.sched_setaffinity(0, [core])
        rounds = []
        for _ in range(4):
            start = time.perf_counter()
            for _ in range(40):
                one.add(1)
            rounds.append(time.perf_counter() - start)
        took[core] = max(took[core], median(rounds))
        settle(device)
    best = min(took, key=lambda core: took[core])
    for thread in map(int, os.listdir("/proc/self/task")):
        os.sched_setaffinity(thread, [best])
    return best


_CORES = sorted(os.sched_getaffinity(0))


def write(path: str, found: dict[str, Any]) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
