"""A process ends as it should, whatever its watch is at."""

from __future__ import annotations

import subprocess
import sys

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
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
