"""A rank's tie to the launcher that started it: it ends with it, heeds its signals, and tells it where it is.

Nothing here needs torch: it holds while a rank imports it too.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

LAUNCHER, BEATS, BEAT_FOLDER = "MESHWRIGHT_LAUNCHER", "MESHWRIGHT_BEATS", "MESHWRIGHT_BEAT_FOLDER"
"""Environment variables: the launcher's process, the pipe on which a rank tells it where it is, and the folder in which
ranks of torchrun do (`rank_watch`)."""
EVERY_S = 0.5
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that end a job: politely at first, at once when they come again."""
INTERRUPTED = 130
LONGEST = 300
"""Characters of a place that are told; a pipe takes that many at once or none."""

_PR_SET_PDEATHSIG = 1


class _Told:
    """Where this process is; whoever knows better puts a function of its own here."""

    place: Callable[[], str] = staticmethod(lambda: "starting")


def tell_place(place: Callable[[], str]) -> None:
    """From now on, what the launcher is told of where this rank is."""
    _Told.place = staticmethod(place)


def begin() -> None:
    """Called first of all on a rank that `launch` started, with its signals blocked."""
    launcher = int(os.environ[LAUNCHER])
    _end_with_parent_thread()
    if os.getppid() != launcher:  # it went before the kernel knew
        os._exit(1)
    for number in STOPS:
        signal.signal(number, _leave)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
    handle = int(os.environ.pop(BEATS))
    os.set_inheritable(handle, False)
    os.set_blocking(handle, False)
    threading.Thread(target=_beat, args=(handle, launcher), daemon=True).start()


def end_with_parent() -> None:
    """Called on a rank that others started: it ends when its parent is gone, even if that was killed, and tells an
    agent of ours where it is."""
    parent, say = os.getppid(), _beat_in_folder(os.environ.get(BEAT_FOLDER))
    if BEAT_FOLDER in os.environ:  # torchrun's agent, which starts ranks from its first thread
        _end_with_parent_thread()

    def watch() -> None:
        while os.getppid() == parent:
            say()
            time.sleep(EVERY_S)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _beat_in_folder(folder: str | None) -> Callable[[], None]:
    """What a rank calls twice a second to say where it is; it does nothing where nobody listens."""
    counted = 0

    def say() -> None:
        nonlocal counted
        counted += 1
        if folder is not None:
            made, target = os.path.join(folder, f".{os.getpid()}"), os.path.join(folder, str(os.getpid()))
            with suppress(OSError):
                with open(made, "w", encoding="utf-8") as file:
                    file.write(f"{counted} {os.environ.get('RANK', '?')} {_Told.place()}")
                os.replace(made, target)

    return say


def _end_with_parent_thread() -> None:
    """By the kernel's hand, on Linux: also while this process cannot run Python."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _leave(number: int, frame: object) -> None:
    """Before there is anything to save."""
    os._exit(INTERRUPTED)


def _beat(handle: int, launcher: int) -> None:
    while os.getppid() == launcher:
        text = _Told.place().replace("\n", " ")[:LONGEST]
        try:
            os.write(handle, f"{text}\n".encode())
        except BlockingIOError:  # the launcher stands still; it has beats to read when it goes on
            pass
        except OSError:
            break
        time.sleep(EVERY_S)
    os._exit(1)
