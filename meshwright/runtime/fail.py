"""One message for a failure, whichever ranks it happens on."""

from __future__ import annotations

import os
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import torch.distributed as dist

from meshwright.errors import MeshwrightError, RunError
from meshwright.torch_compat import own_store

REFUSED, LOST = 2, 4
"""Exit codes of a rank: it was asked for something that cannot be; others of its job are gone."""

WAIT_S = 5.0
"""How long a rank that says nothing stays for another to say it."""


class LostError(RunError):
    """Another rank of the job failed or is gone; this one has nothing of its own to tell."""


TORCHS_OWN = {
    "optimizer got an empty parameter list": (
        "a rank of a pipeline has the parameters of its own stage alone. Give them as a group, which may be empty: "
        'AdamW([{"params": model.layers[0].parameters()}])'
    ),
    "doesn't match the size of optimizer's group": (
        "a rank of a pipeline has the parameters of its own stage alone. Make the optimizer and load the state of a "
        "plain run before mw.parallelize, which hands each stage its part; what mw.save wrote is loaded by mw.load"
    ),
    "got mixed torch.Tensor and DTensor": (
        "parameters of an adopted model are DTensors. Compute with whole ones inside `with trainer.gathered():`, and "
        "with gradients in the loss"
    ),
    "data pointer on an invalid python storage": (
        "model.state_dict() holds DTensors. For safetensors call mw.export(trainer, path), or save what "
        "trainer.full_state_dict() gives on one rank"
    ),
}
"""Messages of torch that come before anything of ours runs, with what they mean after mw.parallelize."""

_HOOK = "meshwright_one_message"


def tell_uncaught() -> None:
    """On ranks that somebody else started (torchrun): an error of ours that nobody catches is one message of one rank,
    with the user's line, in place of a traceback of each. Other errors go where they went, with a note where ours is
    the cause."""
    before = sys.excepthook
    if "RANK" not in os.environ or hasattr(before, _HOOK):
        return

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not isinstance(error, MeshwrightError) or os.environ.get("MESHWRIGHT_DEBUG", "") not in ("", "0"):
            for words, meaning in TORCHS_OWN.items():
                if words in str(error):
                    error.add_note(f"meshwright: {meaning}")
            before(kind, error, trace)
        elif isinstance(error, LostError):
            print(f"meshwright: rank {os.environ['RANK']}: {error}", file=sys.stderr, flush=True)
        elif _first():
            print(f"meshwright: {error}{_users_line(trace)}", file=sys.stderr, flush=True)

    setattr(hook, _HOOK, True)
    sys.excepthook = hook


def _users_line(trace: TracebackType | None) -> str:
    """The last line that is in no installed package and not here."""
    own = str(Path(__file__).parents[1])
    frames = [one for one in traceback.extract_tb(trace) if not one.filename.startswith(own)]
    users = [one for one in frames if "site-packages" not in one.filename and "<frozen" not in one.filename]
    return f"\n  at: {users[-1].filename}:{users[-1].lineno}  {users[-1].line}" if users else ""


def tell(error: BaseException) -> int:
    """Print the error unless another rank has told of one; returns the exit code."""
    lost = isinstance(error, LostError) or is_lost(error)
    if not lost and _first():
        text = str(error) if isinstance(error, MeshwrightError) else f"{type(error).__name__}: {error}"
        print(f"meshwright: {text}", file=sys.stderr, flush=True)
        if os.environ.get("MESHWRIGHT_DEBUG", "") not in ("", "0"):
            traceback.print_exception(error)
    return LOST if lost else REFUSED


GONE = (
    # gloo
    "connection closed by peer", "connection reset", "connection was", "broken pipe", "socket", "connect timeout",
    "timed out waiting", "application timeout",
    # NCCL, and torch's watchdog over it
    "ncclremoteerror", "remote process exited", "remote process exiting", "nccl communicator was aborted",
    "watchdog caught collective operation timeout", "some nccl operations have failed or timed out",
    "connection refused",
    # the job's store
    "failed to recv", "recvvalue failed", "sendbytes failed", "recvbytes failed", "wait timeout",
)  # fmt: skip
"""What the backends say where a peer went away, in lower case."""
OWN = ("ncclinvalidusage", "ncclinvalidargument", "ncclunhandledcudaerror", "out of memory", "duplicate gpu")
"""What NCCL says of faults of this rank's own, though the same message may name a socket."""


def is_lost(error: BaseException) -> bool:
    """A collective failed because a peer went: whoever started the ranks knows which."""
    if isinstance(error, MeshwrightError) or not isinstance(error, RuntimeError | ConnectionError):
        return False
    text = str(error).lower()
    if any(word in text for word in OWN):
        return False
    known = isinstance(error, ConnectionError | dist.DistNetworkError)
    return known or any(word in text for word in GONE)


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
