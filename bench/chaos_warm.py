"""Launchers and ranks as copies of a process that has torch in memory: importing it costs more than a small job does.

What is copied is the start of a process alone. A launcher runs `meshwright train` or torchrun (`runtime.job.elastic`),
its ranks are its children, in sessions of their own and tied to it, as those that are started from a file.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import torch

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_NEW_UTS, _NEW_NET = 0x04000000, 0x40000000


class Copy:
    """A child of this process, with what `subprocess.Popen` has."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            found, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if found else None
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = time.monotonic() + (float("inf") if timeout is None else timeout)
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("a copy", timeout or 0.0)
            time.sleep(0.02)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def warm(model: str) -> None:
    """Import what launchers and ranks import, and do once what fills torch's caches."""
    import torch.distributed.run

    import meshwright.cli
    import meshwright.cluster.detect.worker
    import meshwright.price.check
    import meshwright.runtime.job.command
    import meshwright.runtime.job.elastic
    import meshwright.runtime.job.worker
    from meshwright.capture import capture
    from meshwright.generate.pair import make_pair
    from meshwright.models.reference import parse_reference

    assert meshwright.runtime.job.worker
    torch.set_num_threads(1)
    program = capture(*parse_reference(model).meta(2))
    if torch.version.cuda is None:  # else backward has threads, and a copy of a process that ran it cannot run it
        for graph in program.graphs:
            make_pair(graph.at(2))


def copied(
    action: Callable[[], int], log: Path | None, environment: Mapping[str, str], keep: Sequence[int] = ()
) -> Copy:
    """Run an action in a copy of this process, in a session of its own. log: what it prints, else the parent's."""
    warnings.simplefilter("ignore", DeprecationWarning)  # of threads, which the copy does not need
    pid = os.fork()
    if pid:
        return Copy(pid)
    _be(action, log, environment, keep)


def _be(action: Callable[[], int], log: Path | None, environment: Mapping[str, str], keep: Sequence[int]) -> NoReturn:
    code: object = 1
    try:
        os.setsid()
        if log is not None:
            handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(handle, 1)
            os.dup2(handle, 2)
        _close_all_but({0, 1, 2, *keep})
        os.environ.clear()
        os.environ.update(environment)
        torch.set_num_threads(1)  # a copy's pool of threads is made anew, which two threads may not ask for at once
        code = action()
    except SystemExit as error:
        code = error.code
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 0 if code is None else 1)


def _close_all_but(kept: set[int]) -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            with suppress(OSError):
                os.close(int(name))


def train(words: Sequence[str], log: Path) -> Copy:
    """`meshwright train`, whose launcher starts copies."""

    def run() -> int:
        from meshwright.cli import main
        from meshwright.runtime.job import launch

        _listen()
        launch.subprocess = SimpleNamespace(Popen=_rank)  # type: ignore[attr-defined, assignment]
        return main(["train", *words])

    return copied(run, log, os.environ)


def _rank(command: Sequence[str], env: Mapping[str, str], start_new_session: bool, pass_fds: Sequence[int]) -> Copy:
    """What `launch` starts: `python -m meshwright.runtime.job.rank MODULE ARGUMENTS...`."""

    def run() -> int:
        from meshwright.runtime.job import worker
        from meshwright.runtime.job.tether import begin

        begin()
        sys.argv = list(command[3:])
        return worker.main()

    return copied(run, None, env, pass_fds)


def torchrun(words: Sequence[str], log: Path, environment: Mapping[str, str], host: tuple[str, str] | None) -> Copy:
    """torchrun with these words, whose ranks are copies. host: the name and the network namespace that it is in."""

    def run() -> int:
        from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

        from meshwright.runtime.job import elastic

        if host is not None:
            _enter(*host)
        _listen()
        SubprocessHandler._popen = _joined  # type: ignore[method-assign, assignment]
        sys.argv = ["torchrun", *words]
        return elastic.main()

    return copied(run, log, os.environ | dict(environment))


def _joined(handler: object, args: Sequence[Any], env: Mapping[str, str]) -> Copy:
    """What torchrun starts: `python -u -m meshwright train ...`."""
    words = [str(word) for word in args[args.index("meshwright") + 1 :]]

    def run() -> int:
        from meshwright.cli import main

        _listen()
        return main(words)

    return copied(run, None, env)


def _listen() -> None:
    """As a new process does."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)


def _enter(name: str, namespace: str) -> None:
    """A host of its own: a network namespace, and a name."""
    libc = ctypes.CDLL(None, use_errno=True)
    handle = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    if libc.setns(handle, _NEW_NET) or libc.unshare(_NEW_UTS):
        raise OSError(ctypes.get_errno(), "cannot enter a host")
    os.close(handle)
    socket.sethostname(name)
