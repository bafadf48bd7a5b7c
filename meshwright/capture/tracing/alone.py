"""A forward is captured as plain PyTorch runs it in one process: not compiled, without a process group, unseeded.

What the model's own modules ask of torch about these is answered so while it is traced; torch itself and other
threads are told the truth.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from threading import get_ident
from types import ModuleType
from typing import Any

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
        (dist, "is_initialized"): _answered(dist.is_initialized, False, told) if dist.is_available() else None,
        (dist, "get_world_size"): _answered(getattr(dist, "get_world_size", None), 1, told),
        (dist, "get_rank"): _answered(getattr(dist, "get_rank", None), 0, told),
    }
    for name in COLLECTIVES:
        made[dist, name] = _refused(getattr(dist, name, None), _collective(name), told)
    for holder, name in SEEDS:
        made[holder, name] = _refused(getattr(holder, name), _seeded(name), told)
    for holder, name in () if compiled else compile_questions():
        made[holder, name] = _noted(getattr(holder, name), f"{holder.__name__}.{name}", asked, told)
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


def _answered(truth: Any, answer: Any, told: Truth) -> Callable[..., Any]:
    def answered(*args: Any, **kwargs: Any) -> Any:
        return truth(*args, **kwargs) if is_dynamo_compiling() or told.for_caller() else answer

    return answered


def _noted(truth: Any, name: str, asked: list[str], told: Truth) -> Callable[..., Any]:
    def answered(*args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling() or told.for_caller(_OWN_PATHS):
            return truth(*args, **kwargs)
        asked.append(name)
        return False

    return answered


def _refused(truth: Any, refusal: Callable[[], CaptureError], told: Truth) -> Callable[..., Any]:
    def refused(*args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling() or told.for_caller():
            return truth(*args, **kwargs)
        raise noted(refusal())

    return refused


def _collective(name: str) -> Callable[[], CaptureError]:
    return lambda: CaptureError(
        f"torch.distributed.{name} in the forward, at {line_here()}",
        "a forward as one process runs it on the whole batch: a plan brings in what ranks tell each other",
        "leave it out, or out of one process: `if torch.distributed.is_initialized():` is answered with False here",
    )


def _seeded(name: str) -> Callable[[], CaptureError]:
    return lambda: CaptureError(
        f"torch.{name} in the forward, at {line_here()}",
        "random numbers that follow from the seed of mw.parallelize, the step and the element",
        "seed outside of the model; what is drawn alike in every step can be a buffer, drawn when the model is made",
    )
