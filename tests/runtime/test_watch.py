"""A process ends as it should, whatever its watch is at."""

from __future__ import annotations

import gc
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from meshwright.layout.transport import ProcessTransport
from meshwright.runtime import watch

SCRIPT = """
import time
from contextlib import suppress
from datetime import timedelta
from tempfile import mkdtemp

import torch.distributed as dist

from meshwright.runtime.watch import Watch

dist.init_process_group("gloo", init_method=f"file://{mkdtemp()}/store", rank=0, world_size=1)
dist.get_world_size = lambda: 2


class Asking(Watch):
    def talk(self) -> None:
        with suppress(dist.DistError):
            store.wait(["never"], timedelta(milliseconds=5))


store = dist.TCPStore("localhost", 0, is_master=True)
watch = Asking(0.005)
time.sleep(0.2)
"""


def test_a_process_ends_while_its_watch_asks_the_store() -> None:
    """A native call that returns to an interpreter which is going down ends the process by a signal."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


class _World:
    """Stands for a process group."""


def test_a_new_world_gets_groups_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """After `destroy_process_group` and another `init_process_group`: the new one may lie where the old one did."""
    made, known = list[object](), len(watch._SHARED)

    def from_ranks(ranks: torch.Tensor, names: list[str]) -> ProcessTransport:
        made.append(ranks)
        groups: dict[str, Any] = {name: object() for name in names}
        return ProcessTransport(groups)

    monkeypatch.setattr(ProcessTransport, "from_ranks", from_ranks)
    for number in range(1, 9):
        world = _World()
        fake = SimpleNamespace(group=SimpleNamespace(WORLD=world), get_rank=lambda: 0)
        with monkeypatch.context() as inside:  # it lets go of what it had put there
            inside.setattr(watch, "dist", fake)
            for _ in range(2):
                assert watch.WatchedTransport.shared(torch.arange(1), ["dp"], "test") is not None
        assert len(made) == number, "once for each world"
        del world, fake
        gc.collect()
        assert len(watch._SHARED) == known, "groups go with their world"
