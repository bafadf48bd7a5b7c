"""Capture: a model and a batch become a Program."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from meshwright.capture.build import build
from meshwright.capture.export import Batch, batch_size, export, named_batch
from meshwright.capture.precision import Precision, check_precision
from meshwright.capture.program import Program
from meshwright.capture.read import read
from meshwright.capture.replay import NotAlikeError


def capture(
    model: nn.Module,
    batch: Batch,
    loss: Callable[..., Tensor] | None = None,
    *,
    precision: Precision | None = None,
) -> Program:
    """The Program of one training step of `model` on `batch`. Allocates nothing of the model's size.

    precision: what the step computes in (see `precision`); by default, whatever dtypes model and batch have.
    """
    check_precision(model, precision)
    named = named_batch(model, batch)
    try:
        exported = export(model, named, loss, precision=precision)
        flat = read(exported.graph, exported.model, exported.notes)
    except NotAlikeError:
        exported = export(model, named, loss, precision=precision, once=False)
        flat = read(exported.graph, exported.model, exported.notes)
    return build(flat, batch_size(named))


__all__ = ["Batch", "Precision", "Program", "capture", "named_batch"]
