"""Asking a search to end with what it has. A search that has found a plan looks here before it goes on."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(slots=True)
class Stop:
    """asked: somebody wants the best so far. may: a search is under way that heeds it."""

    asked: bool = False
    may: bool = False

    @contextmanager
    def heeded(self) -> Iterator[None]:
        self.may = True
        try:
            yield
        finally:
            self.may = False

    @contextmanager
    def by_ctrl_c(self, say: Callable[[str], None]) -> Iterator[None]:
        """Ctrl-C asks for the best so far; a second one, or one while no search is under way, is as ever.

        say: tells the user that it was heard. Threads other than the main one get no signals: nothing changes.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def interrupt(number: int, frame: object) -> None:
            if self.asked or not self.may:
                raise KeyboardInterrupt
            self.asked = True
            say("stopping with the best plan so far (Ctrl-C again: at once)")

        self.asked = False
        before = signal.signal(signal.SIGINT, interrupt)
        try:
            yield
        finally:
            self.asked = False
            signal.signal(signal.SIGINT, before)


STOP = Stop()
