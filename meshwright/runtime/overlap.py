"""Reductions beside the backward pass: one thread that runs them in order, over process groups of its own.

Collectives of two threads may not meet in one group: which came first would differ from rank to rank.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

import torch

from meshwright.layout.transport import Transport, use_transport_on_this_thread

T = TypeVar("T")


class Overlap(Generic[T]):
    """`start` begins something; `finished` gives back what is done, in the order it was begun.

    Without a transport of its own everything runs at once, where it is begun: on a GPU, and on one rank. thread: one
    that others use too; what they begin runs in one order then, on this rank as on every other.
    """

    def __init__(self, transport: Transport | None, thread: ThreadPoolExecutor | None = None) -> None:
        self._transport = transport
        self._thread = (thread or ThreadPoolExecutor(1, "reductions")) if transport is not None else None
        self._begun: list[Future[T]] = []

    def start(self, work: Callable[[], T]) -> None:
        if self._thread is not None:
            self._begun.append(self._thread.submit(self._run, work))
            return
        done: Future[T] = Future()
        done.set_result(work())
        self._begun.append(done)

    def finished(self, *, wait: bool) -> list[T]:
        """All that was begun, or what is done by now."""
        count = len(self._begun) if wait else _leading_done(self._begun)
        found = [future.result() for future in self._begun[:count]]
        del self._begun[:count]
        return found

    def _run(self, work: Callable[[], T]) -> T:
        assert self._transport is not None
        with use_transport_on_this_thread(self._transport), torch.no_grad():
            return work()


def _leading_done(futures: list[Future[T]]) -> int:
    return next((number for number, future in enumerate(futures) if not future.done()), len(futures))
