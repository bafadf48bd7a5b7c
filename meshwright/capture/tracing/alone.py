"""A forward is captured as plain PyTorch runs it in one process: not compiled, without a process group, unseeded.

What the model's own modules ask of torch about these is answered so while it is traced; torch itself and other
threads are told the truth.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import get_ident
from types import ModuleType
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.compiler import is_dynamo_compiling

from meshwright.capture.tracing.lines import line_here
from meshwright.capture.tracing.swallowed import noted
from meshwright.capture.tracing.traps import stand_ins
from meshwright.errors import CaptureError
from meshwright.torch_compat import compile_questions

COLLECTIVES = (
    "all_reduce", "all_gather", "all_gather_into_tensor", "all_gather_object", "reduce", "reduce_scatter",
    "reduce_scatter_tensor", "broadcast", "broadcast_object_list", "gather", "scatter", "all_to_all",
    "all_to_all_single", "send", "recv", "isend", "irecv", "barrier",
)  # fmt: skip
SEEDS = ((torch, "manual_seed"), (torch, "seed"), (torch, "set_rng_state"), (torch.random, "manual_seed"))
_TRUSTED = frozenset({"torch", "meshwright"})
_OWN_PATHS = _TRUSTED | {"transformers"}
"""Whose questions about compiling are answered elsewhere (`traps`)."""


@contextmanager
def as_one_process(modules: Iterable[ModuleType], compiled: bool) -> Iterator[list[str]]:
    """modules: of the model's own code. compiled: tell them the truth about being exported.

    Yields the questions about compiling that were asked.
    """
    asked: list[str] = []
    told = Truth()
    made: dict[tuple[Any, str], Any] = {
        (dist, "is_initialized"): _answered(dist.is_initialized, lambda: False, told) if dist.is_available() else None,
        (dist, "get_world_size"): _answered(getattr(dist, "get_world_size", None), lambda: 1, told),
        (dist, "get_rank"): _answered(getattr(dist, "get_rank", None), lambda: 0, told),
    }
    for name in COLLECTIVES:
        made[dist, name] = _answered(getattr(dist, name, None), _refused(f"torch.distributed.{name}", *_TALKS), told)
    for holder, name in SEEDS:
        made[holder, name] = _answered(getattr(holder, name), _refused(f"torch.{name}", *_DRAWS), told)
    for holder, name in () if compiled else compile_questions():
        answer = partial(_noted, asked, f"{holder.__name__}.{name}")
        made[holder, name] = _answered(getattr(holder, name), answer, told, _OWN_PATHS)
    with stand_ins(made, modules):
        yield asked


class Truth:
    """Who is told the truth: threads other than the one that made this, and packages that are trusted. Dynamo, which
    cannot trace the question, is not asked (`torch.cond` compiles its branches)."""

    def __init__(self) -> None:
        self._thread = get_ident()

    def for_caller(self, trusted: frozenset[str] = _TRUSTED) -> bool:
        """Whether the code that called the function that called this is told it."""
        name = str(sys._getframe(2).f_globals.get("__name__", ""))
        return get_ident() != self._thread or name.partition(".")[0] in trusted


def _answered(
    truth: Any, answer: Callable[[], Any], told: Truth, trusted: frozenset[str] = _TRUSTED
) -> Callable[..., Any]:
    def answered(*args: Any, **kwargs: Any) -> Any:
        return truth(*args, **kwargs) if is_dynamo_compiling() or told.for_caller(trusted) else answer()

    return answered


def _noted(asked: list[str], name: str) -> bool:
    asked.append(name)
    return False


def _refused(called: str, expected: str, todo: str) -> Callable[[], NoReturn]:
    def refuse() -> NoReturn:
        raise noted(CaptureError(f"{called} in the forward, at {line_here()}", expected, todo))

    return refuse


_TALKS = (
    "a forward as one process runs it on the whole batch: a plan brings in what ranks tell each other",
    "leave it out, or out of one process: `if torch.distributed.is_initialized():` is answered with False here",
)
_DRAWS = (
    "random numbers that follow from the seed of mw.parallelize, the step and the element",
    "seed outside of the model; what is drawn alike in every step can be a buffer, drawn when the model is made",
)
"""What was expected, and what to do."""
