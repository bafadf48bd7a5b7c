"""An optimizer's step on this rank's own pieces, in place of DTensors.

Adam, AdamW and SGD treat every element by itself: on the pieces alone they compute the same, and a DTensor's way to
each of its ops costs the host more than the op. So while such a step runs, the optimizer is handed the pieces, with its
state in pieces too; before and after, parameters and state are DTensors, for schedulers, checkpoints and whoever looks.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from meshwright.torch_compat import dtensor_like, has_step_hooks, local_tensor

ELEMENTWISE = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)
_PIECE = "meshwright_piece"


_LENT: WeakKeyDictionary[torch.optim.Optimizer, list[list[nn.Parameter]]] = WeakKeyDictionary()
"""The stored parameters of an optimizer, group by group, while it steps on their pieces."""


class _Piece:
    """What stands in for a stored parameter: a plain one over the same memory. state, pieces: the optimizer's state as
    it was last seen, as DTensors and in pieces."""

    def __init__(self, stored: nn.Parameter) -> None:
        self.local = nn.Parameter(local_tensor(stored).detach(), requires_grad=False)
        self.state: dict[str, Any] = {}
        self.pieces: dict[str, Any] = {}

    def lend(self, stored: nn.Parameter, optimizer: torch.optim.Optimizer) -> nn.Parameter:
        grad = stored.grad
        self.local.grad = local_tensor(grad) if isinstance(grad, DTensor) else None
        state = optimizer.state.get(stored)
        if state:
            if state.keys() != self.state.keys() or any(state[key] is not own for key, own in self.state.items()):
                self.state = dict(state)
                self.pieces = {k: local_tensor(v) if isinstance(v, DTensor) else v for k, v in state.items()}
            optimizer.state[self.local] = self.pieces
        return self.local

    def take_back(self, stored: nn.Parameter, optimizer: torch.optim.Optimizer) -> None:
        self.local.grad = None
        made = optimizer.state.pop(self.local, None)
        if made and made is not self.pieces:  # the first step makes the state
            self.pieces = made
            self.state = {key: self._wrapped(key, value, stored) for key, value in made.items()}
            optimizer.state[stored] = dict(self.state)

    def _wrapped(self, key: str, value: Any, stored: nn.Parameter) -> Any:
        alike = isinstance(value, Tensor) and key != "step" and value.shape == self.local.shape
        return dtensor_like(value, stored) if alike else value


def prepare(parameter: nn.Parameter) -> None:
    """From now on its piece can be lent."""
    if isinstance(parameter.data, DTensor):
        setattr(parameter, _PIECE, _Piece(parameter))


def lend_pieces(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    """Before a step; nothing where it may look at more than one element at a time, or somebody else looks at it."""
    closure = any(one is not None for one in (*args[1:], *kwargs.values()))  # the first is the optimizer
    if type(optimizer) not in ELEMENTWISE or closure or has_step_hooks(optimizer) or hasattr(optimizer, "grad_scale"):
        return
    _LENT[optimizer] = [group["params"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        pieces = [(one, getattr(one, _PIECE, None)) for one in group["params"]]
        group["params"] = [one if piece is None else piece.lend(one, optimizer) for one, piece in pieces]


def take_back(optimizer: torch.optim.Optimizer) -> None:
    """After it; or before the next, where one has ended with an error."""
    for group, params in zip(optimizer.param_groups, _LENT.pop(optimizer, []), strict=False):
        for one in params:
            piece = getattr(one, _PIECE, None)
            if piece is not None:
                piece.take_back(one, optimizer)
        group["params"] = params
