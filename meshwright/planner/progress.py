"""Progress lines on standard error: the task, the last node, the incumbent and the seconds.

A terminal shows one line, which is overwritten. Elsewhere (a log file, a notebook) a line is added for every step and
every five seconds. With `stops`, Ctrl-C asks the search for its incumbent, and a second Ctrl-C ends the command.
"""

from __future__ import annotations

import sys
import threading
import time
from contextlib import ExitStack
from types import TracebackType
from typing import TextIO

from meshwright.planner.interrupt import STOP

EVERY_S = {True: 0.25, False: 5.0}
"""Seconds between lines on a terminal (True), and elsewhere (False)."""
AFTER_S = 1.0
"""Nothing is written in the first so many seconds on a terminal; elsewhere, incumbents are written so far apart."""


class Progress:
    """A context in which progress is written.

    lines: (seconds since the start, text) of every incumbent.

    shown: False writes nothing.
    quiet_s: nothing is written before so many seconds.
    stops: Ctrl-C ends the search, not the process.
    """

    def __init__(
        self,
        shown: bool,
        stream: TextIO | None = None,
        *,
        quiet_s: float | None = None,
        prefix: str = "",
        stops: bool = True,
    ) -> None:
        self.lines: list[tuple[float, str]] = []
        self._shown, self._stream, self._prefix, self._stops = shown, stream or sys.stderr, prefix, stops
        self._terminal = self._stream.isatty()
        self._quiet_s = quiet_s if quiet_s is not None else AFTER_S if self._terminal else 0.0
        self._start_s, self._said_s = time.perf_counter(), 0.0
        self._task, self._at, self._best, self._nodes, self._wrote = "", "", "", 0, False
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._interrupts = ExitStack()

    def __enter__(self) -> Progress:
        if self._stops:
            self._interrupts.enter_context(STOP.by_ctrl_c(self._heard))
        if self._shown:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._shown:
            self._thread.join()
            self._clear()
        self._interrupts.close()

    def doing(self, task: str) -> None:
        """Begins the next task."""
        self._task, self._at, self._best = task, "", ""
        if not self._terminal:
            self._say()

    def on_node(self, node: str) -> None:
        """Called by the search for every node; shown with the next line."""
        self._nodes += 1
        self._at = f"{self._nodes} looked at, last {node}"

    def found(self, line: str) -> None:
        """Called by the search for every incumbent."""
        self._best = line
        self.lines.append((time.perf_counter() - self._start_s, line))
        if not self._terminal:
            self._say(between_s=AFTER_S)

    def _heard(self, line: str) -> None:
        self._task, self._at = line, ""
        self._say()

    def _beat(self) -> None:
        if self._over.wait(self._quiet_s):
            return
        if self._quiet_s:
            self._say()
        while not self._over.wait(EVERY_S[self._terminal]):
            self._say(between_s=EVERY_S[self._terminal] / 2)

    def _say(self, between_s: float = 0.0) -> None:
        passed_s = time.perf_counter() - self._start_s
        if not self._shown or passed_s < self._quiet_s or passed_s - self._said_s < between_s:
            return
        at = f" ({self._at})" if self._at else ""
        best = f"; best so far {self._best}" if self._best else ""
        with self._lock:
            self._said_s, self._wrote = passed_s, True
            line = f"{self._prefix}{passed_s:5.1f} s  {self._task}{at}{best}"
            self._stream.write(f"\r\033[K{line[:160]}" if self._terminal else f"{line}\n")
            self._stream.flush()

    def _clear(self) -> None:
        if self._terminal and self._wrote:
            self._stream.write("\r\033[K")
            self._stream.flush()
