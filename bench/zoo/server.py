"""Processes for a trial's steps, forked by one that has never run an op of torch.

With torch's CUDA build a process that ran a backward, or a copy of one, cannot be forked into others that do. A server
is forked before the trial does anything; what a job needs is sent to it as bytes, which only the job's process reads.
"""

from __future__ import annotations

import os
import pickle
import tempfile
import traceback
from dataclasses import dataclass, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from bench.zoo.entry import Entry
from bench.zoo.lists import entry_of
from bench.zoo.steps import RankError, Trace, eager_steps, kind_of, planned_steps
from meshwright.capture.program import Program
from meshwright.errors import MeshwrightError
from meshwright.plan.plan import Plan
from meshwright.runtime import trainer


@dataclass(frozen=True, slots=True)
class Job:
    """Three steps of an entry: eager, where it has no plan. program: the capture that ranks reuse."""

    name: str
    double: bool
    plan: Plan | None = None
    program: Program | None = None

    def entry(self) -> Entry:
        return replace(entry_of(self.name), double=self.double)


class Server:
    """The process that forks. It ends with the trial."""

    def __init__(self) -> None:
        self._requests, asked = Pipe()
        if os.fork() == 0:
            self._requests.close()
            _serve(asked)
        asked.close()

    def run(self, job: Job, ranks: int = 1) -> list[Trace]:
        """The traces of a job's processes."""
        with tempfile.TemporaryDirectory() as folder:
            self._requests.send((pickle.dumps(job), ranks, folder))
            codes = self._requests.recv()
            answers = [Path(folder) / f"{rank}.pt" for rank in range(ranks)]
            found = [torch.load(path, weights_only=False) if path.exists() else None for path in answers]
            said = [path.with_suffix(".said").read_text(encoding="utf-8", errors="replace")[-600:] for path in answers]
        return _checked(found, codes, said)


def _serve(asked: Connection) -> None:
    while True:
        try:
            job, ranks, folder = asked.recv()
        except EOFError:
            os._exit(0)
        children = []
        for rank in range(ranks):
            if (child := os.fork()) == 0:
                _answer(job, rank, ranks, folder)
            children.append(child)
        asked.send([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])


def _steps(job: Job, rank: int, ranks: int, folder: str) -> Trace:
    if job.plan is None:
        entry = job.entry()
        return eager_steps(entry.made(), entry.optimizer)
    if job.program is not None:
        trainer.capture = lambda *_, **__: job.program
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    found = planned_steps(job.entry().made(), job.plan)
    dist.barrier()
    return found


def _answer(job: bytes, rank: int, ranks: int, folder: str) -> None:
    answer: Any
    os.dup2(os.open(f"{folder}/{rank}.said", os.O_CREAT | os.O_WRONLY), 2)
    try:
        answer = _steps(pickle.loads(job), rank, ranks, folder)
    except MeshwrightError as error:
        answer = (kind_of(error), f"{type(error).__name__}: {error}")
    except BaseException:
        answer = ("traceback", traceback.format_exc())
    torch.save(answer, f"{folder}/{rank}.part")
    os.replace(f"{folder}/{rank}.part", f"{folder}/{rank}.pt")
    os._exit(0)


def _checked(found: list[Any], codes: list[int], said: list[str]) -> list[Trace]:
    """A rank that failed of itself is told before one that died, and that before those that lost it."""
    failed = [answer for answer in found if isinstance(answer, tuple)]
    lost = [answer for answer in failed if "LostError" in answer[1] or "closed by peer" in answer[1]]
    died = [
        ("abort", f"process {rank} ended with {codes[rank]}: {said[rank]}")
        for rank, answer in enumerate(found)
        if answer is None
    ]
    own = sorted((answer for answer in failed if answer not in lost), key=lambda answer: answer[0] != "traceback")
    for kind, text in (*own, *died, *lost):
        raise RankError(kind, text)
    return found
