"""Pools of gloo processes, one per world size, kept for the whole session: starting them costs more than the tests."""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any


def _serve(rank: int, size: int, store: str, pipe: Connection) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    while (task := pipe.recv()) is not None:
        function, arguments = task
        try:
            pipe.send((True, function(rank, *arguments)))
        except BaseException:
            pipe.send((False, traceback.format_exc()))
    dist.destroy_process_group()
    os._exit(0)  # nothing is left to be cleaned up, and tearing torch down takes seconds


class GlooPool:
    """`run(function, *arguments)` calls `function(rank, *arguments)` on all ranks and returns their results."""

    def __init__(self, size: int) -> None:
        context = mp.get_context("spawn")
        self._folder = tempfile.TemporaryDirectory()
        self._pipes: list[Connection] = []
        self._processes = []
        for rank in range(size):
            ours, theirs = context.Pipe()
            store = str(Path(self._folder.name) / "store")
            process = context.Process(target=_serve, args=(rank, size, store, theirs), daemon=True)
            process.start()
            self._pipes.append(ours)
            self._processes.append(process)

    def run(self, function: Callable[..., Any], *arguments: Any, timeout_s: float = 180) -> list[Any]:
        for pipe in self._pipes:
            pipe.send((function, arguments))
        answers = []
        for rank, pipe in enumerate(self._pipes):
            assert pipe.poll(timeout_s), f"rank {rank} gave no answer in {timeout_s} s"
            try:
                answers.append(pipe.recv())
            except EOFError:
                self._processes[rank].join(10)
                raise AssertionError(f"rank {rank} ended with {self._processes[rank].exitcode}") from None
        for rank, (fine, result) in enumerate(answers):
            assert fine, f"rank {rank} failed:\n{result}"
        return [result for _, result in answers]

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.send(None)
        for process in self._processes:
            process.join(10)
            if process.is_alive():
                process.kill()
        self._folder.cleanup()


def forked(size: int, function: Callable[..., Any], *arguments: Any, timeout_s: float = 180) -> list[Any]:
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
        try:
            for rank, pipe in enumerate(pipes):
                assert pipe.poll(timeout_s), f"rank {rank} gave no answer in {timeout_s} s"
            answers = [pipe.recv() for pipe in pipes]
        finally:
            for child in children:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
    for rank, (fine, result) in enumerate(answers):
        assert fine, f"rank {rank} failed:\n{result}"
    return [result for _, result in answers]


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
