"""One way of `bench/activation_memory.py` to train a model, in a process of its own: compiled once, asked for turns.

    python bench/activation_way.py '{"model": "...", "name": "eager", ...}'

It compiles, takes the lock that all ways share, runs two steps, gives back all memory but its weights' and says
`ready`. Then every line it reads is one turn under the lock: a step, then the timed ones; `trace`: a step, then one
whose kernels are written down. Answers are lines of JSON behind an `@`.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":  # the folder of this file would hide modules of the standard library: it has a `select`
    sys.path[0] = sys.path[0].rpartition("/")[0]
os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")

import fcntl
import gc
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.distributed
from torch import Tensor, nn

from bench.activation_rivals import Rival, hand_rotary_tables
from meshwright.models.reference import parse_reference
from meshwright.plan import Plan
from meshwright.runtime.trainer import Trainer, parallelize

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Way:
    """plan: a file, for one of ours; else `name` is a rival's. limit_gib: what the allocator is held to. trace: a file
    for the kernels of a step."""

    name: str
    model: str
    batch: int
    device: str
    steps: int
    lock: str
    plan: str = ""
    limit_gib: float | None = None
    compiled: bool = True
    trace: str = ""

    def text(self) -> str:
        return json.dumps(asdict(self))


class Turns:
    """Builds what is to be timed and answers; the GPU is held under the lock alone."""

    def __init__(self, way: Way) -> None:
        self.way, self.device = way, torch.device(way.device)
        self.reference = parse_reference(way.model)
        self.lock = open(way.lock, "w")  # noqa: SIM115
        self.held, self.compiling = False, False
        torch.manual_seed(0)
        shapes = self.reference.shapes(way.batch)
        self.batch = {name: self._tensor(shape, kind) for name, (shape, kind) in shapes.items()}
        self.optimizer: torch.optim.Optimizer | None = None
        self.rival: Rival | None = None
        self.trainer: Trainer | None = None

    def _tensor(self, shape: tuple[int, ...], kind: str) -> Tensor:
        if kind.startswith("int"):
            settings = dict(self.reference.settings)
            return torch.randint(0, settings.get("vocab") or settings.get("classes", 10), shape, device=self.device)
        return torch.randn(shape, device=self.device, dtype=torch.bfloat16)

    def _model(self, place: torch.device) -> nn.Module:
        torch.manual_seed(0)
        with place:
            return self.reference.build().to(torch.bfloat16).train()

    def prepare(self) -> None:
        if self.way.plan:
            model, plan = self._model(self.device), Plan.load(self.way.plan)
            self.trainer = parallelize(model, plan, compile=self.way.compiled, device=self.way.device)
            del model  # the trainer has adopted its weights
        else:
            hand_rotary_tables(dict(self.reference.settings), self.device)
            self.rival = Rival(self.way.name, self._model(self.device), self.batch, self.acquire)
            self.rival.compile()
            self.compiling = self.way.name.startswith("compile")
        self.turn(steps=1)
        self.compiling = False

    def acquire(self) -> None:
        if not self.held:
            fcntl.flock(self.lock, fcntl.LOCK_EX)
            self.held = True

    def release(self) -> None:
        fcntl.flock(self.lock, fcntl.LOCK_UN)
        self.held = False

    def turn(self, steps: int, trace: str = "") -> dict[str, float]:
        try:
            with self._awake(), self._limited():
                return self._timed(steps, trace)
        finally:
            self._clean()
            self.release()

    @contextmanager
    def _awake(self) -> Iterator[None]:
        if not self.compiling:  # else once that is done, in the first step
            self.acquire()
        try:
            if self.rival is not None:
                self.rival.wake()
            if self.trainer is not None:
                self.optimizer = torch.optim.AdamW(self.trainer.parameters(), lr=1e-5, fused=True)
            yield
        finally:
            if self.rival is not None:
                self.rival.park()
            if self.optimizer is not None:
                self.optimizer.zero_grad()
                self.optimizer = None

    @contextmanager
    def _limited(self) -> Iterator[None]:
        if self.device.type != "cuda" or self.way.limit_gib is None:
            yield
            return
        self._clean()
        whole = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, self.way.limit_gib * GIB / whole))
        try:
            yield
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)

    def _step(self) -> Tensor:
        if self.rival is not None:
            return self.rival.step()
        assert self.trainer is not None
        assert self.optimizer is not None
        self.optimizer.zero_grad()
        loss = self.trainer.step(self.batch)
        self.optimizer.step()
        return loss

    def _timed(self, steps: int, trace: str) -> dict[str, float]:
        cuda = self.device.type == "cuda"
        loss = self._step()
        self.acquire()
        self._sync()
        if trace:
            self._trace(trace)
            return {"traced": 1.0}
        if cuda:
            torch.cuda.reset_peak_memory_stats()
        before = time.perf_counter()
        for _ in range(steps):
            loss = self._step()
        self._sync()
        found = {"ms": (time.perf_counter() - before) / steps * 1e3, "loss": float(loss)}
        if cuda:
            found["gib"] = torch.cuda.max_memory_allocated() / GIB
            found["reserved"] = torch.cuda.max_memory_reserved() / GIB
        return found

    def _trace(self, path: str) -> None:
        """Kernels of one step: [name, microseconds, start, its shapes where an op of torch launched it]."""
        activities = [torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
        with torch.profiler.profile(activities=activities) as profile:
            self._step()
            self._sync()
        events = [e for e in profile.events() if e.device_type.name == "CUDA"]
        rows = [[e.name[:120], e.time_range.elapsed_us(), e.time_range.start] for e in events]
        with open(path, "w") as file:
            json.dump(rows, file)

    def _sync(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def _clean(self) -> None:
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


def answer(**found: Any) -> None:
    print("@" + json.dumps(found), flush=True)


def main() -> None:
    way = Way(**json.loads(sys.argv[1]))
    backend = "nccl" if way.device == "cuda" else "gloo"
    torch.distributed.init_process_group(backend, store=torch.distributed.HashStore(), rank=0, world_size=1)
    before = time.monotonic()
    try:
        turns = Turns(way)
        turns.prepare()
        answer(ready=round(time.monotonic() - before, 1))
        for line in sys.stdin:
            answer(**turns.turn(way.steps, way.trace if line.strip() == "trace" else ""))
    except Exception as error:
        answer(error=f"{type(error).__name__}: {error}"[:400])
        raise
    finally:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
