"""A function's answer from a forked copy of this process, which may end without one."""

from __future__ import annotations

import faulthandler
import os
import pickle
import select
import signal
import warnings
from collections.abc import Callable
from typing import Any

import torch

from meshwright.errors import MeshwrightError

LONGEST_S = 300.0
"""How long an op may be tried."""
UNABLE = "unable"
"""The kind of answer of a copy in which torch cannot compute gradients."""

Answer = tuple[str, Any]
"""`found` and what the function returned; `refused` and our error's type and parts; `failed` and what it raised;
`unable`."""


class EndedError(Exception):
    """The process that tried ended before it answered, or what was tried is not to be had there."""


def in_copy(function: Callable[[Any], Any], given: Any) -> Answer:
    """The answer of `function(given)` in a copy of this process. Raises EndedError where that ends without one."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of copies while there are threads: it starts its own
        child = os.fork()
    if child == 0:
        _answer(function, given, writing)
    os.close(writing)
    try:
        return read_answer(reading)
    finally:
        os.close(reading)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _answer(function: Callable[[Any], Any], given: Any, writing: int) -> None:
    """In the copy: write the answer and end, leaving alone what belongs to the original."""
    try:
        faulthandler.disable()
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        torch.set_num_threads(1)
        data = framed(_tried(function, given) if _has_gradients() else (UNABLE, None))
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(data)
    finally:
        os._exit(0)


def _tried(function: Callable[[Any], Any], given: Any) -> Answer:
    try:
        return "found", function(given)
    except MeshwrightError as error:
        return "refused", (type(error), (error.given, error.expected, error.todo))
    except BaseException as error:  # the op is not ours: it may raise anything
        return "failed", f"{type(error).__name__}: {error}"


def _has_gradients() -> bool:
    """Whether autograd works in a copy: not where the original has threads of it for a GPU."""
    try:
        one = torch.ones((), requires_grad=True)
        torch.autograd.grad(one * 2, one)
    except RuntimeError:
        return False
    return True


def framed(found: Any) -> bytes:
    """Its pickle, after the length of that in eight bytes."""
    data = pickle.dumps(found)
    return len(data).to_bytes(8, "big") + data


def read_answer(reading: int, longest_s: float | None = LONGEST_S) -> Answer:
    """One that was `framed`, from a file descriptor. Raises EndedError where it does not come whole, or in time."""
    size = int.from_bytes(_bytes(reading, 8, longest_s), "big")
    found: Answer = pickle.loads(_bytes(reading, size, longest_s))
    return found


def _bytes(reading: int, count: int, longest_s: float | None) -> bytes:
    data = b""
    while len(data) < count:
        part = os.read(reading, count - len(data)) if select.select([reading], [], [], longest_s)[0] else b""
        if not part:
            raise EndedError("no answer")
        data += part
    return data
