"""Collectives that overlap compute: begun in order, waited for where their results are used.

On CPUs one thread runs them, over process groups of its own; collectives of two threads may not meet in one group:
which came first would differ from rank to rank. On a GPU they are asked for at once, on a stream of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from typing import Generic, Protocol, TypeVar

import torch

from meshwright.layout.transport import Transport, use_transport_on_this_thread

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Begun(Protocol[T_co]):
    """Something under way."""

    def done(self) -> bool: ...

    def result(self) -> T_co:
        """Waited for: what follows here may use it."""
        ...


class Overlap:
    """`start` begins something that returns tensors.

    Without a transport of its own everything runs at once, where it is begun: on one rank. alone: there are copies from
    the host and back, which on a GPU overlap compute on one rank too. thread: one that others use too; what they
    begin runs in one order then, on this rank as on every other.
    """

    def __init__(
        self,
        transport: Transport | None,
        device: torch.device,
        thread: ThreadPoolExecutor | None = None,
        alone: bool = False,
    ) -> None:
        self._transport = transport
        self._thread: ThreadPoolExecutor | None = None
        self._stream: torch.cuda.Stream | None = None
        if (transport is not None or alone) and device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        elif transport is not None:
            self._thread = thread or ThreadPoolExecutor(1, "collectives")

    def start(self, work: Callable[[], T]) -> Begun[T]:
        if self._stream is not None:
            return self._on_stream(work, self._stream)
        if self._thread is not None:
            return self._thread.submit(self._run, work)
        made = Future[T]()
        made.set_result(work())
        return made

    def _run(self, work: Callable[[], T]) -> T:
        inside = nullcontext() if self._transport is None else use_transport_on_this_thread(self._transport)
        with inside, torch.no_grad():
            return work()

    def _on_stream(self, work: Callable[[], T], stream: torch.cuda.Stream) -> Begun[T]:
        """It sees all that was asked for before it. What it reads is kept until it has been waited for, and memory of
        this stream is asked for here only: so none is given to another while it is in use."""
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            made = self._run(work)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(stream)
        return _OnStream(made, event, work)


class _OnStream(Generic[T]):
    def __init__(self, made: T, event: torch.cuda.Event, reads: object) -> None:
        self._made, self._event, self._reads = made, event, reads

    def done(self) -> bool:
        return bool(self._event.query())  # type: ignore[no-untyped-call]

    def result(self) -> T:
        torch.cuda.current_stream().wait_event(self._event)
        return self._made
