"""Pools of gloo processes, one per world size, kept for the whole session: starting them costs more than the tests."""

from __future__ import annotations

import faulthandler
import gc
import multiprocessing as mp
import os
import signal
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.forkserver import ensure_running
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

GRACE_S = 30.0
"""How long ranks may go on once one of them has failed: long enough to find it out for themselves."""

Answer = tuple[bool, Any]
"""Whether it went well, with the result or the traceback."""


def copies() -> Any:
    """Like `multiprocessing`: processes that are copies of one that has read `warm`, which takes seconds."""
    if torch.cuda.is_available():
        return mp.get_context("spawn")  # a copy of a process that has seen a GPU cannot use it
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(["warm"])
    here, given = str(Path(__file__).parent), os.environ.get("PYTHONPATH")
    with patch.dict(os.environ, PYTHONPATH=f"{here}:{given}" if given else here):
        ensure_running()
    return context


def _serve(rank: int, size: int, store: str, pipe: Connection) -> None:
    import captures
    import torch.distributed as dist
    import traces

    faulthandler.register(signal.SIGUSR1, open(_stack_file(store, rank), "w"))  # noqa: SIM115  stays open
    torch.set_num_threads(1)
    captures.share()
    traces.share()
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    while True:  # until it is killed
        function, arguments = pipe.recv()
        gc.collect()
        gc.freeze()  # what earlier tasks left: whoever looks through all objects passes over it
        try:
            pipe.send((True, function(rank, *arguments)))
        except BaseException:
            pipe.send((False, traceback.format_exc()))


def _stack_file(store: str, rank: int) -> str:
    """Where a rank that is asked (SIGUSR1) writes what its threads are at."""
    return f"{store}-stack-{rank}"


class GlooPool:
    """`run(function, *arguments)` calls `function(rank, *arguments)` on all ranks and returns their results.

    Ranks of which one has failed are not used again: the next run starts others.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._pipes: list[Connection] = []
        self._processes: list[BaseProcess] = []

    def _start(self) -> None:
        context = copies()
        self._folder = tempfile.TemporaryDirectory()
        self._store = str(Path(self._folder.name) / "store")
        for rank in range(self.size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, self.size, self._store, theirs), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def run(self, function: Callable[..., Any], *arguments: Any, timeout_s: float = 300) -> list[Any]:
        if not self._processes:
            self._start()
        for pipe in self._pipes:
            pipe.send((function, arguments))
        answers = _answers(self._pipes, timeout_s)
        if all(rank in answers and answers[rank][0] for rank in range(self.size)):
            return _results(answers, {}, timeout_s)
        codes = {rank: self._code(rank) for rank in range(self.size) if rank not in answers}
        stacks = "".join(f"rank {rank} is at\n{self._stacks(rank)}" for rank, code in codes.items() if code is None)
        self._end()
        assert not stacks, f"no answer in {timeout_s} s\n{stacks}"
        return _results(answers, codes, timeout_s)

    def _code(self, rank: int) -> int | None:
        """That of a rank that has ended; None of one that has not."""
        self._processes[rank].join(1)
        return self._processes[rank].exitcode

    def _stacks(self, rank: int) -> str:
        os.kill(self._processes[rank].pid or 0, signal.SIGUSR1)
        time.sleep(1)
        return Path(_stack_file(self._store, rank)).read_text()

    def _end(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()
        for pipe in self._pipes:
            pipe.close()
        self._pipes, self._processes = [], []
        self._folder.cleanup()

    def close(self) -> None:
        """Nothing is left to be cleaned up, and tearing torch down takes seconds."""
        if self._processes:
            self._end()


def _answers(pipes: Sequence[Connection], timeout_s: float) -> dict[int, Answer]:
    """By rank, of those that answered in time; the others get less of it once one has failed."""
    found: dict[int, Answer] = {}
    left, end = list(pipes), time.monotonic() + timeout_s
    while left and (ready := wait(left, end - time.monotonic())):
        for pipe in left[:]:
            if pipe not in ready:
                continue
            left.remove(pipe)
            try:
                found[pipes.index(pipe)] = pipe.recv()
                fine = found[pipes.index(pipe)][0]
            except (EOFError, OSError):
                fine = False
            if not fine:
                end = min(end, time.monotonic() + GRACE_S)
    return found


def _results(answers: Mapping[int, Answer], codes: Mapping[int, int | None], timeout_s: float) -> list[Any]:
    """codes: those with which ranks without an answer ended; None of those that are still at it.

    Where one failed, all that did are told, the one that failed of itself before those that lost it.
    """
    failed = {rank: text for rank, (fine, text) in answers.items() if not fine}
    told = [f"rank {rank} failed:\n{failed[rank]}" for rank in sorted(failed, key=lambda r: "LostError" in failed[r])]
    for rank, code in codes.items():
        told.append(f"rank {rank} " + (f"gave no answer in {timeout_s} s" if code is None else f"ended with {code}"))
    assert not told, "\n".join(told)
    return [answers[rank][1] for rank in sorted(answers)]


def forked(size: int, function: Callable[..., Any], *arguments: Any, timeout_s: float = 300) -> list[Any]:
    """`function(rank, *arguments)` on gloo ranks that are copies of this process: what it has made, they have too."""
    context = mp.get_context("fork")
    pipes, children = [], []
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads, which the copies do not need
        for rank in range(size):
            ours, theirs = context.Pipe()
            child = os.fork()
            if child == 0:
                _answer(rank, size, f"{folder}/store", theirs, function, arguments)
            theirs.close()
            pipes.append(ours)
            children.append(child)
        answers = dict[int, Answer]()
        try:
            answers = _answers(pipes, timeout_s)
        finally:
            codes = {rank: _ended(child) for rank, child in enumerate(children)}
    return _results(answers, {rank: code for rank, code in codes.items() if rank not in answers}, timeout_s)


def _ended(child: int) -> int | None:
    """The code with which a child has ended; None of one that is ended here."""
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return None if code == -signal.SIGKILL else code


def _answer(
    rank: int, size: int, store: str, pipe: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    import torch.distributed as dist

    parent = os.getppid()
    try:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
        pipe.send((True, function(rank, *arguments)))
    except BaseException:
        pipe.send((False, traceback.format_exc()))
    while os.getppid() == parent:  # until all have answered: whoever leaves early takes its connections with it
        time.sleep(0.1)
    os._exit(0)
