"""Stop: the request that a search ends with its incumbent. A search that has one reads it at every node."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(slots=True)
class Stop:
    """State of the process-wide request.

    requested: the user wants the incumbent now.
    under_way: a search is running.
    found: the search has an incumbent.
    """

    requested: bool = False
    under_way: bool = False
    found: bool = False

    @contextmanager
    def searching(self) -> Iterator[None]:
        self.under_way = True
        try:
            yield
        finally:
            self.under_way = self.found = False

    @contextmanager
    def by_ctrl_c(self, say: Callable[[str], None]) -> Iterator[None]:
        """Ctrl-C asks for the incumbent. A second one, or one before there is an incumbent, is KeyboardInterrupt.

        say: called with a line for the user. In threads other than the main one, which get no signals, nothing changes.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def interrupt(number: int, frame: object) -> None:
            if self.requested or not self.found:
                raise KeyboardInterrupt(*["no plan was found yet"] if self.under_way and not self.found else [])
            self.requested = True
            say("stopping with the best plan so far (Ctrl-C again: at once)")

        self.requested = False
        before = signal.signal(signal.SIGINT, interrupt)
        try:
            yield
        finally:
            self.requested = False
            signal.signal(signal.SIGINT, before)


STOP = Stop()
