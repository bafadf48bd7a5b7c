"""HiGHS in a process of its own, because it honours cancellation late or never on large models and a process can be
killed.

Parent and child exchange pickles over pipes: the child sends (bound, choice) pairs as they come and a last word;
the parent sends better choices, of which the child takes the latest whenever it starts a new branch-and-bound.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, Any

import meshwright
from meshwright.select.problem import InfeasibleError, Problem

SOLVED, STOPPED, INFEASIBLE = "solved", "stopped", "infeasible"
FOREVER_S = 1e6  # the parent decides when it is over


class Child:
    """The parent's end. Use as a context manager: leaving it kills the process."""

    def __init__(self, problem: Problem, *, gap: float) -> None:
        root = str(Path(meshwright.__file__).parent.parent)
        path = os.pathsep.join(part for part in (root, os.environ.get("PYTHONPATH", "")) if part)
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from meshwright.select.child import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
        )
        self._news: queue.Queue[tuple[float | None, list[int] | None] | str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.ended: str | None = None
        self._write((problem, gap))

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def offer(self, choice: list[int]) -> None:
        """A choice to start from or to cut off with."""
        self._write(choice)

    def news(self, wait_s: float = 0.0) -> list[tuple[float | None, list[int] | None]]:
        """What arrived since the last call; waits up to `wait_s` for something. Sets `ended` on the last word."""
        found: list[tuple[float | None, list[int] | None]] = []
        with contextlib.suppress(queue.Empty):
            while True:
                word = self._news.get(timeout=wait_s) if wait_s > 0 and not found else self._news.get_nowait()
                if isinstance(word, str):
                    self.ended = word
                    break
                found.append(word)
        return found

    def _write(self, thing: object) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended; its last word is in the queue
            _put(self._process.stdin, thing)

    def _read(self) -> None:
        assert self._process.stdout is not None
        try:
            while True:
                self._news.put(pickle.load(self._process.stdout))
        except (EOFError, ValueError, OSError, pickle.UnpicklingError):
            self._news.put(STOPPED)


def main() -> None:
    """The child's end."""
    from meshwright.select.ilp import branch_and_bound

    out, source = os.fdopen(os.dup(1), "wb"), sys.stdin.buffer
    os.dup2(2, 1)  # nothing a library prints may get between the pickles
    problem, gap = pickle.load(source)
    latest: list[list[int] | None] = [None]
    threading.Thread(target=_listen, args=(source, latest), daemon=True).start()

    def report(bound: float | None, choice: list[int] | None) -> None:
        _put(out, (bound, choice))

    try:
        solved = branch_and_bound(problem, report, seconds=FOREVER_S, gap=gap, offered=lambda: latest[0])
        _put(out, SOLVED if solved else STOPPED)
    except InfeasibleError:
        _put(out, INFEASIBLE)
    os._exit(0)  # without waiting for the listener


def _listen(source: IO[bytes], latest: list[list[int] | None]) -> None:
    with contextlib.suppress(EOFError, OSError, pickle.UnpicklingError):
        while True:
            latest[0] = pickle.load(source)
    os._exit(1)  # the parent is gone


def _put(pipe: IO[Any], thing: object) -> None:
    pickle.dump(thing, pipe, protocol=pickle.HIGHEST_PROTOCOL)
    pipe.flush()
