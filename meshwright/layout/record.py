"""A log of the collectives that a rank executes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from meshwright.layout.steps import Collective

_thread_logs = threading.local()
_process_logs: list[list[Collective]] = []


@contextmanager
def record() -> Iterator[list[Collective]]:
    """Collect every communicating op this rank executes inside the block, in order."""
    logs = _logs()
    log: list[Collective] = []
    logs.append(log)
    try:
        yield log
    finally:
        # By identity: two empty logs are equal, and the wrong one must not go.
        logs[:] = [other for other in logs if other is not log]


def _logs() -> list[list[Collective]]:
    """A simulated rank has logs of its own; a process has one set, which autograd's threads share."""
    logs: list[list[Collective]] | None = getattr(_thread_logs, "logs", None)
    return _process_logs if logs is None else logs


@contextmanager
def own_logs() -> Iterator[None]:
    """Give the calling thread logs of its own: one simulated rank."""
    _thread_logs.logs = []
    try:
        yield
    finally:
        del _thread_logs.logs


def note(kind: str, axis: str, tensor: Tensor) -> None:
    note_bytes(kind, axis, tensor.numel() * tensor.element_size())


def note_bytes(kind: str, axis: str, n_bytes: int) -> None:
    for log in _logs():
        log.append(Collective(kind, axis, n_bytes))
