"""Asking a search to end with what it has. A search that has found a plan looks here before it goes on."""

from __future__ import annotations

from collections.abc import Iterator
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


STOP = Stop()
