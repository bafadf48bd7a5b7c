"""Capture: a model and a batch become a Program."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from meshwright.capture.build import build
from meshwright.capture.export import Batch, batch_size, export, named_batch
from meshwright.capture.program import Program
from meshwright.capture.read import read
from meshwright.capture.replay import NotAlikeError


def capture(model: nn.Module, batch: Batch, loss: Callable[..., Tensor] | None = None) -> Program:
    """The Program of one training step of `model` on `batch`. Allocates nothing of the model's size."""
    named = named_batch(model, batch)
    try:
        exported = export(model, named, loss)
        flat = read(exported.graph, model, exported.notes)
    except NotAlikeError:
        exported = export(model, named, loss, once=False)
        flat = read(exported.graph, model, exported.notes)
    return build(flat, batch_size(named))


__all__ = ["Batch", "Program", "capture", "named_batch"]
