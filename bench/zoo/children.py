"""One forked process per model: a few at a time, each with its limits, and what it died of told."""

from __future__ import annotations

import json
import os
import resource
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

import meshwright as mw
from bench.zoo.lists import PACKAGES, entry_of
from bench.zoo.packages import declare_vision_ops
from bench.zoo.rows import Row, started
from bench.zoo.trial import Options, Trial

NICE = 5
WALL = 10
"""How many seconds of the clock go by for one CPU second, at the most, on a machine that others use too."""


@dataclass(frozen=True, slots=True)
class Limits:
    """cpu_s: of each process of a model. options: of its trial."""

    cpu_s: int
    options: Options


@dataclass(frozen=True, slots=True)
class Child:
    name: str
    folder: tempfile.TemporaryDirectory[str]
    late_s: float


def run_all(names: Sequence[str], jobs: int, limits: Limits, seconds: float) -> Iterator[Row]:
    """Rows as they come; none is begun after so many seconds. Packages are imported here, once: children do not pay."""
    torch.set_num_threads(1)
    declare_vision_ops()
    _warm()
    left, running = list(names), dict[int, Child]()
    end_s = time.monotonic() + seconds
    while left or running:
        if time.monotonic() > end_s:
            left.clear()
        while left and len(running) < jobs:
            name = left.pop(0)
            running |= dict([_start(name, limits)])
        time.sleep(0.1)
        for pid, child in list(running.items()):
            if (code := _ended(pid, child)) is not None:
                del running[pid]
                yield _row(child, code, limits)


def _warm() -> None:
    """Has torch import what exporting, planning and stepping need, which takes seconds. With torch's CUDA build no op
    is run: see `server`."""
    for name in ("torch.export", "torch._dynamo", "torch._functorch.aot_autograd", "torch.distributed.tensor"):
        import_module(name)
    if torch.version.cuda is None:
        model, batch = nn.Linear(2, 2), (torch.zeros(2, 2),)
        plan = mw.plan(model, batch, cluster="local:1", loss=_loss)
        trainer = mw.parallelize(model, plan, _loss)
        trainer.step(batch)
        torch.optim.AdamW(trainer.parameters()).step()
        dist.destroy_process_group()


def _loss(output: Tensor, *_: Tensor) -> Tensor:
    return output.sum()


@cache
def _import(package: str) -> None:
    with suppress(ImportError):
        found = import_module(package)
        if package == "transformers":
            _ = found.AutoModelForCausalLM, found.PreTrainedModel  # what all of them share


def _start(name: str, limits: Limits) -> tuple[int, Child]:
    _import(PACKAGES[name.partition(":")[0]])
    folder = tempfile.TemporaryDirectory()
    if (pid := os.fork()) == 0:
        os.setsid()
        os.nice(NICE)
        resource.setrlimit(resource.RLIMIT_CPU, (limits.cpu_s, limits.cpu_s + 5))
        said = os.open(f"{folder.name}/said", os.O_CREAT | os.O_WRONLY)
        os.dup2(said, 1)
        os.dup2(said, 2)
        path = Path(folder.name) / "row.json"
        Trial(entry_of(name), path, limits.options).run()
        os._exit(0)
    return pid, Child(name, folder, time.monotonic() + WALL * limits.cpu_s)


def _ended(pid: int, child: Child) -> int | None:
    """The code that the child ended with; None of one that is at work. One that is late is ended; so are its ranks."""
    late = time.monotonic() > child.late_s
    if late:
        _kill_group(pid)
    done, status = os.waitpid(pid, 0 if late else os.WNOHANG)
    if not done:
        return None
    _kill_group(pid)
    return -signal.SIGXCPU if late else os.waitstatus_to_exitcode(status)


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _row(child: Child, code: int, limits: Limits) -> Row:
    path = Path(child.folder.name) / "row.json"
    row = json.loads(path.read_text(encoding="utf-8")) if path.exists() else started(child.name)
    if code == -signal.SIGXCPU:
        row |= {"outcome": "timeout", "text": f"over {limits.cpu_s} CPU seconds"}
    elif code != 0:
        said = (Path(child.folder.name) / "said").read_text(encoding="utf-8", errors="replace")
        row |= {"outcome": "abort", "text": f"exit {code}: {said[-600:]}"}
    child.folder.cleanup()
    return row
