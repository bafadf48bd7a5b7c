"""Capture: a model and a batch become a Program."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace

from torch import Tensor, nn

from meshwright.capture.batch import Batch, batch_size, check_given, named_batch
from meshwright.capture.build import build, varies
from meshwright.capture.flat import Flat
from meshwright.capture.precision import Precision, check_precision
from meshwright.capture.program import Program
from meshwright.capture.reading.read import read
from meshwright.capture.tracing.export import export
from meshwright.capture.tracing.repeat import NotAlikeError
from meshwright.errors import CaptureWarning

BAKED = "numbers that the forward made for each sample, outside torch, are the same in every step (a random mask?)"


def capture(
    model: nn.Module,
    batch: Batch,
    loss: Callable[..., Tensor] | None = None,
    *,
    precision: Precision | None = None,
    keyed: bool = True,
    fine: bool = False,
) -> Program:
    """The Program of one training step of `model` on `batch`. Allocates nothing of the model's size.

    precision: what the step computes in (see `precision`); by default, whatever dtypes model and batch have.
    keyed: random ops draw by key (see `random`), as a planned run does; False leaves them as eager runs them. fine:
    segments end wherever they can, not with what repeats: for pipelines that are cut by hand.
    """
    check_given(model, batch, loss)
    check_precision(model, precision)
    named = named_batch(model, batch, loss)
    size = batch_size(named)

    def flat(*, once: bool = True, vary: bool = True) -> tuple[Flat, tuple[str, ...]]:
        exported = export(model, named, loss, precision=precision, once=once, vary=vary)
        return read(exported.graph, exported.model, exported.notes, by_key=keyed), exported.warnings

    try:
        once = True
        found, warned = flat()
    except NotAlikeError:
        once = False
        found, warned = flat(once=False)
    if size == 1 and not varies(found, size):
        found, warned = flat(once=once, vary=False)  # one sample is exported as two, right only if the batch varies
    if not varies(found, size) and any(type_.shape[:1] == (size,) for type_ in found.made):
        warned += (BAKED,)
    for text in warned:
        warnings.warn(text, CaptureWarning, stacklevel=2)
    return replace(build(found, size, fine=fine), warnings=warned)


__all__ = ["Batch", "Precision", "Program", "capture", "named_batch"]
