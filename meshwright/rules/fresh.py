"""A helper process that never used a GPU: it makes the copies where this one cannot.

Once torch has computed gradients in a process that sees a GPU, forked copies of it cannot. The helper sees none. It
knows what can be imported: torch's ops, libraries that were loaded, and modules of users that define ops; not what a
script defines itself.
"""

from __future__ import annotations

import atexit
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib import import_module
from typing import Any

import torch

from meshwright.rules.copied import Answer, EndedError, framed, in_copy, read_answer
from meshwright.torch_compat import modules_with_ops

_START = "from meshwright.rules.fresh import serve; serve()"


class Helper:
    """Its process lives until nobody can ask it any more."""

    def __init__(self) -> None:
        paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
        self.owner = os.getpid()
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": paths, "CUDA_VISIBLE_DEVICES": ""},
        )

    def ask(self, function: Callable[[Any], Any], given: Any) -> Answer:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            request = pickle.dumps((function, given))
            self._process.stdin.write(framed((modules_with_ops(), sorted(torch.ops.loaded_libraries), request)))
            self._process.stdin.flush()
        except (OSError, pickle.PicklingError, AttributeError, TypeError) as error:
            raise EndedError(f"not asked: {error}") from error
        return read_answer(self._process.stdout.fileno())

    def end(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        self._process.kill()
        self._process.wait()


_HELPERS: list[Helper] = []


@atexit.register
def _end_helpers() -> None:
    for helper in _HELPERS:
        if helper.owner == os.getpid():
            helper.end()


def in_helper(function: Callable[[Any], Any], given: Any) -> Answer:
    """The answer of `function(given)` in a copy of the helper. Raises EndedError where there is none."""
    if not _HELPERS or _HELPERS[0].owner != os.getpid():  # a copy of this process starts one of its own
        _HELPERS[:] = [Helper()]
    try:
        return _HELPERS[0].ask(function, given)
    except EndedError:
        _HELPERS.pop().end()
        raise


def serve() -> None:
    """The helper's own loop."""
    answers = os.dup(1)
    os.dup2(2, 1)
    while True:
        try:
            request: Any = read_answer(0, longest_s=None)
        except EndedError:
            return
        os.write(answers, framed(_answered(*request)))


def _answered(modules: Iterable[str], libraries: Iterable[str], request: bytes) -> Answer:
    for name in modules:
        with suppress(Exception):  # not ours: what cannot be imported is missed where it is needed
            import_module(name)
    for path in libraries:
        with suppress(OSError):
            torch.ops.load_library(path)  # type: ignore[no-untyped-call]
    try:
        function, given = pickle.loads(request)
        return in_copy(function, given) if hasattr(os, "fork") else ("found", function(given))
    except Exception as error:
        return "failed", f"{type(error).__name__}: {error}"
