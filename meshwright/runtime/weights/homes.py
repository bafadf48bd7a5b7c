"""Where reduced gradients live: memory that lasts, one piece a bucket, with a part for each parameter."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from meshwright.runtime.weights.buckets import Shape
from meshwright.runtime.weights.packing import part_of
from meshwright.torch_compat import storage_users


class Home:
    """Made with a bucket's first reduction. It is used again in the next step if nobody else refers to it by then."""

    def __init__(self, shape: Shape, dtype: torch.dtype, device: torch.device) -> None:
        self.shape, self.busy = shape, False
        self.flat = torch.empty(sum(shape.counts), dtype=dtype, device=device)
        self.parts = {name: part_of(self.flat, view) for name, view in shape.views(self.flat).items()}
        self._users = [storage_users(part) for part in self.parts.values()]

    def gradients(self) -> dict[str, Tensor]:
        """The parts, as tensors that count as users of their memory while they live."""
        return {name: part.detach() for name, part in self.parts.items()}

    def is_free(self, stored: Mapping[str, nn.Parameter]) -> bool:
        """No reduction writes there, no parameter has its gradient there, and nobody has kept one of earlier steps."""
        own = all(stored[name].grad is None for name in self.parts)
        return own and not self.busy and [storage_users(part) for part in self.parts.values()] == self._users


class Homes:
    """By bucket; `find` gives memory that may be written."""

    def __init__(self, stored: Mapping[str, nn.Parameter]) -> None:
        self._stored = stored
        self._homes: dict[Shape, Home] = {}

    def find(self, shape: Shape, dtype: torch.dtype, device: torch.device) -> Home:
        """The bucket's own where it is free; else one that goes when its gradients have been added up."""
        found = self._homes.get(shape)
        if found is None or not found.is_free(self._stored):
            made = Home(shape, dtype, device)
            if found is None or (not found.busy and all(self._stored[name].grad is None for name in found.parts)):
                self._homes[shape] = made
            found = made
        found.busy = True
        return found

    def end_step(self) -> None:
        for home in self._homes.values():
            home.busy = False
