"""One pool of gloo processes for the whole session: starting them costs more than all the tests that use them."""

from __future__ import annotations

import multiprocessing as mp
import tempfile
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

N_RANKS = 6


def _serve(rank: int, store: str, pipe: Connection) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=N_RANKS)
    while (task := pipe.recv()) is not None:
        function, arguments = task
        try:
            pipe.send((True, function(rank, *arguments)))
        except BaseException:
            pipe.send((False, traceback.format_exc()))
    dist.destroy_process_group()


class GlooPool:
    """`run(function, *arguments)` calls `function(rank, *arguments)` on all ranks and returns their results."""

    def __init__(self, folder: str) -> None:
        context = mp.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes = []
        for rank in range(N_RANKS):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, str(Path(folder) / "store"), theirs), daemon=True)
            process.start()
            self._pipes.append(ours)
            self._processes.append(process)

    def run(self, function: Callable[..., Any], *arguments: Any, timeout_s: float = 240) -> list[Any]:
        for pipe in self._pipes:
            pipe.send((function, arguments))
        results = []
        for rank, pipe in enumerate(self._pipes):
            assert pipe.poll(timeout_s), f"rank {rank} gave no answer in {timeout_s} s"
            fine, result = pipe.recv()
            assert fine, f"rank {rank} failed:\n{result}"
            results.append(result)
        return results

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.send(None)
        for process in self._processes:
            process.join(10)
            if process.is_alive():
                process.kill()


@pytest.fixture(scope="session")
def gloo() -> Iterator[GlooPool]:
    with tempfile.TemporaryDirectory() as folder:
        pool = GlooPool(folder)
        yield pool
        pool.close()
