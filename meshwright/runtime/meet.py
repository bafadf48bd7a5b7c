"""How a process joins its job: ranks meet at the store, and are missed by name from then on."""

from __future__ import annotations

import os
from typing import Any

import torch.distributed as dist

from meshwright.cluster.detect.lead import meet
from meshwright.runtime.job.tether import LAUNCHER
from meshwright.runtime.presence import early_presence, presence_of

STARTING_S = 300.0
"""How long ranks of our own launcher wait for each other at least: it knows which of them stands still."""


def join(backend: str, timeout_s: float) -> None:
    """Make the default group; a rank that does not come within timeout_s is named. Reads torchrun's environment."""
    rank, world = int(os.environ["RANK"]), int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1 or timeout_s <= 0:
        dist.init_process_group(backend)
        return
    most_s = max(timeout_s, STARTING_S) if LAUNCHER in os.environ else timeout_s
    store: Any = meet(rank, world, most_s, "the job")
    early_presence(store.underlying_store, rank, world, timeout_s)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world)
    presence_of(timeout_s)
