"""One message for a failure, whichever ranks it happens on."""

from __future__ import annotations

import os
import sys
import time
import traceback
from contextlib import suppress

import torch.distributed as dist

from meshwright.errors import MeshwrightError, RunError
from meshwright.torch_compat import own_store

REFUSED, LOST = 2, 4
"""Exit codes of a rank: it was asked for something that cannot be; others of its job are gone."""

WAIT_S = 5.0
"""How long a rank that says nothing stays for another to say it."""


class LostError(RunError):
    """Another rank of the job failed or is gone; this one has nothing of its own to tell."""


def tell(error: BaseException) -> int:
    """Print the error unless another rank has told of one; returns the exit code."""
    lost = isinstance(error, LostError) or (not isinstance(error, MeshwrightError) and is_lost(error))
    if not lost and _first():
        text = str(error) if isinstance(error, MeshwrightError) else f"{type(error).__name__}: {error}"
        print(f"meshwright: {text}", file=sys.stderr, flush=True)
        if os.environ.get("MESHWRIGHT_DEBUG", "") not in ("", "0"):
            traceback.print_exception(error)
    return LOST if lost else REFUSED


def is_lost(error: BaseException) -> bool:
    """A collective failed because a peer went: whoever started the ranks knows which."""
    words = ("Connection closed by peer", "Connection reset", "connection was", "Broken pipe", "Socket")
    return isinstance(error, RuntimeError) and any(word.lower() in str(error).lower() for word in words)


def _first() -> bool:
    if dist.is_initialized() and dist.get_world_size() > 1:
        with suppress(RuntimeError, dist.DistError):
            return bool(own_store("meshwright/failed").add("told", 1) == 1)
    # Before ranks know each other: one on each host, whose file, say, is missing. The first rank to end takes the
    # others with it, so those that say nothing wait for the one that does.
    if os.environ.get("LOCAL_RANK", os.environ.get("RANK", "0")) == "0":
        return True
    time.sleep(WAIT_S)
    return False
