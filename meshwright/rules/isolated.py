"""Ops that nobody knows run in a copy of this process first.

On tensors that we made up, a kernel that does not check its shapes may write outside of its memory. What then ends is
the copy; the op counts as one that runs on none of our making.
"""

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


class EndedError(Exception):
    """The copy ended before it answered."""


def isolated(function: Callable[[Any], Any], given: Any) -> Any:
    """`function(given)`, computed in a copy of this process; what it returns is pickled. Raises what it raises where
    that is ours, EndedError where it ends without an answer.

    Where processes cannot be copied, or not while torch keeps threads for gradients, it runs here.
    """
    if not hasattr(os, "fork"):
        return function(given)
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of copies while there are threads: it starts its own
        child = os.fork()
    if child == 0:
        _answer(function, given, writing)
    os.close(writing)
    try:
        kind, found = _read(reading)
    except (EOFError, pickle.UnpicklingError) as error:
        raise EndedError(f"process {child} ended") from error
    finally:
        os.close(reading)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    if kind == "here":
        return function(given)
    if kind == "refused":
        error_type, parts = found
        raise error_type(*parts)
    if kind == "failed":
        raise EndedError(found)
    return found


def _answer(function: Callable[[Any], Any], given: Any, writing: int) -> None:
    """In the copy: write the answer and end, leaving alone what belongs to the original."""
    try:
        faulthandler.disable()
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        torch.set_num_threads(1)
        answer = _tried(function, given)
        data = pickle.dumps(answer)
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(data)
    finally:
        os._exit(0)


def _tried(function: Callable[[Any], Any], given: Any) -> tuple[str, Any]:
    if not _has_gradients():
        return "here", None
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


def _read(reading: int) -> tuple[str, Any]:
    data = b""
    while select.select([reading], [], [], LONGEST_S)[0]:
        part = os.read(reading, 1 << 16)
        if not part:
            break
        data += part
    found: tuple[str, Any] = pickle.loads(data)
    return found
