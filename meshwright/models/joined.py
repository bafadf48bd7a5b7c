"""A model and a loss function with parameters of its own, as one module that returns the loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from meshwright.models.batch import batch_names, for_the_loss

Loss = Callable[..., Tensor] | None


class Joined(nn.Module):
    """Parameters are named `model.` and `loss.`; the user's own modules hold them."""

    def __init__(self, model: nn.Module, loss: nn.Module) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, **batch: Any) -> Any:
        targets = for_the_loss(self.model, batch)
        output = self.model(**{name: entry for name, entry in batch.items() if name not in targets})
        return self.loss(output, *(batch[name] for name in targets or batch))


def joined(model: Any, loss: Loss) -> tuple[Any, Loss]:
    """The two as one where the loss has parameters; else as they are."""
    if isinstance(model, nn.Module) and isinstance(loss, nn.Module) and any(True for _ in loss.parameters()):
        return Joined(model, loss), None
    return model, loss


def joined_batch(model: Any, batch: Any, loss: Loss) -> Any:
    """The batch by name where the two are joined: the one module takes any."""
    if joined(model, loss)[0] is model or isinstance(batch, Mapping):
        return batch
    given = batch if isinstance(batch, tuple | list) else (batch,)
    return dict(zip(batch_names(model, loss, len(given)), given, strict=False))
