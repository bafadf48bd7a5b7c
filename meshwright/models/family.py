"""What a model reference stands on: settings with defaults, a way to build the model, the shapes of its batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn

Settings = dict[str, Any]
Shapes = dict[str, tuple[tuple[int, ...], str]]
"""The batch's tensors by name, as (shape, dtype)."""
BATCH = 8
"""Samples of a step, unless given."""


@dataclass(frozen=True, slots=True)
class Family:
    """defaults: every setting with its type. `build` makes the model; `shapes` its batch, as (shape, dtype).

    loss: a function of (output, *batch), where the model does not return its loss itself.
    free: whether whole numbers may be zero or less, as in a library's config.
    batch: samples of a step, unless given. own_batch: the tensors by name that a function of one's own returns; nothing
    where it returns sizes alone.
    """

    name: str
    defaults: Settings
    build: Callable[[Settings], nn.Module]
    shapes: Callable[[Settings, int], Shapes]
    loss: Callable[..., Tensor] | None = None
    free: bool = False
    batch: int = BATCH
    own_batch: Callable[[], dict[str, Tensor]] = dict

    @property
    def is_own(self) -> bool:
        """Whether a function of the user's makes it."""
        return self.own_batch is not dict
