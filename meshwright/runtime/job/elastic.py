"""torchrun with one message: where a rank has said why it ended, torchrun's log, traceback and summary are left out.

`python -m meshwright.runtime.job.elastic` takes what torchrun takes; `meshwright launch` writes it into its scripts.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from ipaddress import ip_address
from itertools import pairwise
from typing import Any

import torch.distributed as dist
from torch.distributed.elastic.multiprocessing import PContext, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import RendezvousError, c10d_rendezvous_backend
from torch.distributed.run import main as torchrun

from meshwright.runtime.job.launch import LOOPBACK, LOST, SAVING_S, ToldError, blamed, listener, on_loopback
from meshwright.runtime.job.rank_watch import RankWatch, timeout_of, watched_ranks
from meshwright.runtime.job.tether import INTERRUPTED, STOPS
from meshwright.runtime.seal import KEY
from meshwright.runtime.watch import default_timeout_s

ENDING_S = 5
"""How long ranks may go on once one of them has failed: long enough to say why."""


def main() -> int:
    _set_patience()
    if "LOGLEVEL" not in os.environ:  # torchrun's own word for it
        for name in list(logging.root.manager.loggerDict):
            if name.startswith("torch.distributed.elastic"):
                logging.getLogger(name).setLevel(logging.CRITICAL)
    alone = "--standalone" in sys.argv
    os.environ.setdefault(KEY, secrets.token_hex(16) if alone else "")
    if alone:
        sys.argv[1:1] = ["--local-addr", LOOPBACK]
        os.environ |= on_loopback()
    _listen_where_asked(alone)
    if _elastic(sys.argv):  # else hosts that come back do not find the store that the others have shared
        os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    wait_s = timeout_of(sys.argv, default_timeout_s())
    with watched_ranks(wait_s) as watch:
        return _run(watch)


def _run(watch: RankWatch) -> int:
    try:
        torchrun()
    except SignalException as error:
        print(f"meshwright: ended by {error.sigval.name}", file=sys.stderr, flush=True)
        return INTERRUPTED
    except ChildFailedError as error:
        codes = {rank: failure.exitcode for rank, failure in error.failures.items()}
        own = {rank: code for rank, code in codes.items() if code != -signal.SIGTERM}  # torchrun ends the others so
        fault = blamed(own or codes)
        told = isinstance(fault, ToldError) or watch.named
        if not told and set(own.values()) != {LOST}:  # else it was told, here or elsewhere
            print(f"meshwright: {fault}", file=sys.stderr, flush=True)
        return 2
    except (dist.DistError, RendezvousError) as error:  # hosts that do not meet
        print(f"meshwright: torchrun: {str(error).partition(chr(10))[0]}", file=sys.stderr, flush=True)
        return 2
    return 0


def _listen_where_asked(alone: bool) -> None:
    """torchrun's stores listen to every network of their host. Those of a job of one host are reached from this machine
    alone, others where ranks look for them."""

    class Store(dist.TCPStore):  # type: ignore[name-defined, misc]
        def __init__(
            self,
            host_name: str,
            port: int,
            world_size: int | None = None,
            is_master: bool = False,
            *rest: Any,
            **given: Any,
        ) -> None:
            address = (LOOPBACK if alone else address_of(host_name)) if is_master else None
            if address:
                with suppress(OSError):  # one that is translated on the way here
                    port, given["master_listen_fd"] = listener(port, address)
            super().__init__(host_name, port, world_size, is_master, *rest, **given)

    for module in (dist, c10d_rendezvous_backend):
        module.TCPStore = Store  # type: ignore[attr-defined]


def address_of(host_name: str) -> str | None:
    """Where other hosts find this one; None where that is not one address, or is known to this host alone."""
    try:
        found = {str(one[4][0]) for one in socket.getaddrinfo(host_name, None, type=socket.SOCK_STREAM)}
    except OSError:
        return None
    outside = [one for one in found if not ip_address(one.partition("%")[0]).is_loopback]
    return outside[0] if len(found) == len(outside) == 1 else None


def _elastic(words: Sequence[str]) -> bool:
    """Whether torchrun is told of fewest and most hosts, `--nnodes=1:2`: the job shrinks and grows with them."""
    given = [after if word in ("--nnodes", "-nnodes") else word for word, after in pairwise([*words, ""])]
    found = [match for word in given if (match := re.fullmatch(r"(?:--nnodes=)?(\d+):(\d+)", word))]
    return any(match[1] != match[2] for match in found)


def _set_patience() -> None:
    """torchrun gives ranks 30 s to end, however they end. Ranks that are asked to save may need longer; once one of
    them has failed the others have nothing left to do, and one that stands still is not waited for."""
    close = PContext.close

    def close_in(self: PContext, death_sig: signal.Signals | None = None, timeout: int = 30) -> None:
        failed = death_sig is None  # torchrun hands on the signal that ends it
        close(self, death_sig, ENDING_S if failed else max(timeout, int(SAVING_S)))

    PContext.close = close_in  # type: ignore[method-assign]


if __name__ == "__main__":
    code = main()
    for number in STOPS:
        signal.signal(number, signal.SIG_DFL)  # nothing is left but to end
    sys.exit(code)
