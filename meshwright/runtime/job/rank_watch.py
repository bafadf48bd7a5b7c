"""torchrun's agent and its ranks: one that stands still is named and ended here, and torchrun ends the rest.

torchrun itself waits for a rank that is frozen for as long as nothing else fails on its host. A rank of `train` writes
where it is into a file of a private folder, twice a second; the agent reads it, by its own clock.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from meshwright.runtime.job.launch import LATER_S
from meshwright.runtime.job.tether import BEAT_FOLDER, EVERY_S

STOPPED = "tT"
"""States of a process that was stopped, as /proc has them."""


@dataclass(slots=True)
class _Heard:
    """What a rank last said, when, and whether it has said anything yet."""

    text: str = ""
    since_s: float = field(default_factory=time.monotonic)


@contextmanager
def watched_ranks(timeout_s: float) -> Iterator[RankWatch]:
    """Watch this process's ranks; they find the folder in their environment."""
    with tempfile.TemporaryDirectory(prefix="meshwright-") as folder:
        os.environ[BEAT_FOLDER] = folder
        watch = RankWatch(Path(folder), timeout_s)
        thread = threading.Thread(target=watch.run, daemon=True)
        thread.start()
        try:
            yield watch
        finally:
            watch.over.set()
            thread.join()
            os.environ.pop(BEAT_FOLDER, None)


class RankWatch:
    """named: the ranks that stood still and were ended."""

    def __init__(self, folder: Path, timeout_s: float) -> None:
        self.folder, self.timeout_s, self.over = folder, timeout_s, threading.Event()
        self.named: list[str] = []
        self._heard: dict[int, _Heard] = {}

    def run(self) -> None:
        before_s = time.monotonic()
        while not self.over.wait(EVERY_S):
            now_s = time.monotonic()
            paused_s, before_s = now_s - before_s - EVERY_S, now_s
            self.look(paused_s if paused_s > 1.0 else 0.0)

    def look(self, paused_s: float = 0.0) -> None:
        """Hear of every rank, and end those that stand still. paused_s: how long this process itself stood still."""
        found = dict(_children())
        self._heard = {process: heard for process, heard in self._heard.items() if process in found}
        for process, state in found.items():
            heard = self._heard.setdefault(process, _Heard())
            heard.since_s += paused_s
            text = self._read(process)
            if text != heard.text or (not text and state not in STOPPED):
                heard.text, heard.since_s = text, time.monotonic()
            if time.monotonic() - heard.since_s > self.timeout_s + LATER_S:
                self._end(process, heard)

    def _read(self, process: int) -> str:
        with suppress(OSError):
            return (self.folder / str(process)).read_text(errors="replace")
        return ""

    def _end(self, process: int, heard: _Heard) -> None:
        _, rank, place = (heard.text or f"0 {_rank_of(process)} starting").split(" ", 2)
        self.named.append(rank)
        print(
            f"meshwright: rank {rank} on {socket.gethostname()} stands still: nothing was heard of it for "
            f"{time.monotonic() - heard.since_s:.0f} s, since `{place}`\n  expected: every rank to go on\n"
            "  to do: see what stopped it; --timeout sets how long others wait",
            file=sys.stderr,
            flush=True,
        )
        with suppress(OSError):
            os.killpg(process, signal.SIGKILL)


def timeout_of(words: Sequence[str], default_s: float) -> float:
    """What `--timeout` says in a command line."""
    for word, after in zip(words, [*words[1:], ""], strict=True):
        value = after if word == "--timeout" else word.partition("--timeout=")[2]
        with suppress(ValueError):
            return float(value)
    return default_s


def _children() -> Iterator[tuple[int, str]]:
    """This process's children that have not ended, and their states; none where there is no /proc."""
    proc, own = Path("/proc"), str(os.getpid())
    for entry in proc.iterdir() if proc.is_dir() else ():
        if entry.name.isdigit():
            with suppress(OSError, IndexError):
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
                if parent == own and state != "Z":
                    yield int(entry.name), state


def _rank_of(process: int) -> str:
    with suppress(OSError):
        words = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
        return next((word[5:].decode() for word in words if word.startswith(b"RANK=")), "?")
    return "?"
