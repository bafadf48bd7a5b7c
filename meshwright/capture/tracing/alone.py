"""A forward is captured as plain PyTorch runs it in one process: not compiled, without a process group, unseeded.

What the model's own modules ask of torch about these is answered so while it is traced; torch itself is told the truth.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

from meshwright.capture.tracing.lines import own_line
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
    made: dict[tuple[Any, str], Any] = {
        (dist, "is_initialized"): _answered(dist.is_initialized, False) if dist.is_available() else None,
        (dist, "get_world_size"): _answered(getattr(dist, "get_world_size", None), 1),
        (dist, "get_rank"): _answered(getattr(dist, "get_rank", None), 0),
    }
    for name in COLLECTIVES:
        made[dist, name] = _refused(getattr(dist, name, None), _collective(name))
    for holder, name in SEEDS:
        made[holder, name] = _refused(getattr(holder, name), _seeded(name))
    for holder, name in () if compiled else compile_questions():
        made[holder, name] = _noted(getattr(holder, name), f"{holder.__name__}.{name}", asked)
    with stand_ins(made, modules):
        yield asked


def _asker(depth: int = 2) -> str:
    """The package whose code called the function that called this."""
    return str(sys._getframe(depth).f_globals.get("__name__", "")).partition(".")[0]


def _answered(truth: Any, answer: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: truth(*args, **kwargs) if _asker() in _TRUSTED else answer


def _noted(truth: Any, name: str, asked: list[str]) -> Callable[..., Any]:
    def answered(*args: Any, **kwargs: Any) -> Any:
        if _asker() in _OWN_PATHS:
            return truth(*args, **kwargs)
        asked.append(name)
        return False

    return answered


def _refused(truth: Any, refusal: Callable[[], CaptureError]) -> Callable[..., Any]:
    def refused(*args: Any, **kwargs: Any) -> Any:
        if _asker() in _TRUSTED:
            return truth(*args, **kwargs)
        raise refusal()

    return refused


def _collective(name: str) -> Callable[[], CaptureError]:
    return lambda: CaptureError(
        f"torch.distributed.{name} in the forward, at {own_line(traceback.extract_stack(limit=40))}",
        "a forward as one process runs it on the whole batch: a plan brings in what ranks tell each other",
        "leave it out, or out of one process: `if torch.distributed.is_initialized():` is answered with False here",
    )


def _seeded(name: str) -> Callable[[], CaptureError]:
    return lambda: CaptureError(
        f"torch.{name} in the forward, at {own_line(traceback.extract_stack(limit=40))}",
        "random numbers that follow from the seed of mw.parallelize, the step and the element",
        "seed outside of the model; what is drawn alike in every step can be a buffer, drawn when the model is made",
    )
