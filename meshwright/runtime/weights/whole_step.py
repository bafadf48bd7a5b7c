"""An optimizer's step on whole matrices, one after the other.

Adafactor takes means over rows and columns, Muon orthogonalizes a matrix: neither can be computed on a piece alone, and
torch's DTensor has not all of their ops. Each parameter is a problem of its own, though: it is gathered, stepped by the
optimizer's own code, and cut again. State of the parameter's shape is stored in its layout, other state on every rank.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from meshwright.runtime.weights.adoption import Cut
from meshwright.runtime.weights.hosted import is_state, standing_aside
from meshwright.runtime.weights.regions import whole

_CUT = "meshwright_cut"
_NAMES = ("torch.optim.Adafactor", "torch.optim.Muon", "transformers.optimization.Adafactor")


def keep_cut(parameter: nn.Parameter, cut: Cut) -> None:
    """From now on what a step makes of it whole can be cut again."""
    setattr(parameter, _CUT, cut)


def shard_loaded_state(optimizer: torch.optim.Optimizer) -> None:
    """State that was saved by a plain run comes whole: it is sharded as its parameter is."""
    for parameter, state in optimizer.state.items():
        cut: Cut | None = getattr(parameter, _CUT, None)
        if cut is not None:
            whole_ones = {key: value for key, value in state.items() if not isinstance(value, DTensor)}
            state.update((key, _cut(key, value, parameter, cut)) for key, value in whole_ones.items())


def is_of_matrices(optimizer: torch.optim.Optimizer) -> bool:
    kind = type(optimizer)
    return f"{kind.__module__}.{kind.__qualname__}" in _NAMES


def step_whole(optimizer: torch.optim.Optimizer) -> None:
    """Before a step: all that it would do to stored parameters is done here; to them it finds no gradients."""
    lists, stored = [list(group["params"]) for group in optimizer.param_groups], optimizer.state
    gradients = {one: one.grad for params in lists for one in params if hasattr(one, _CUT) and one.grad is not None}
    try:
        for number, params in enumerate(lists):
            for one in (one for one in params if one in gradients):
                for group in optimizer.param_groups:
                    group["params"] = []
                plain = nn.Parameter(whole(one.detach()).clone(), requires_grad=False)
                plain.grad = whole(gradients[one])
                optimizer.param_groups[number]["params"] = [plain]
                optimizer.state = _whole_state(plain, stored.get(one, {}))
                with standing_aside(optimizer):
                    type(optimizer).step(optimizer)
                cut: Cut = getattr(one, _CUT)
                with torch.no_grad():
                    one.copy_(cut.piece(plain))
                made = optimizer.state.get(plain, {})
                stored[one] = {key: _cut(key, value, plain, cut) for key, value in made.items()}
    finally:
        optimizer.state = stored
        for group, params in zip(optimizer.param_groups, lists, strict=True):
            group["params"] = params
    _STEPPED[optimizer] = gradients
    for one in gradients:
        one.grad = None


_STEPPED: WeakKeyDictionary[torch.optim.Optimizer, Mapping[nn.Parameter, Tensor]] = WeakKeyDictionary()
"""Gradients of parameters that were stepped already, until the optimizer's step is over."""


def give_back(optimizer: torch.optim.Optimizer) -> None:
    """After a step: gradients are there until somebody clears them."""
    for one, gradient in _STEPPED.pop(optimizer, {}).items():
        if one.grad is None:
            one.grad = gradient


def _whole_state(plain: nn.Parameter, held: Mapping[str, Any]) -> defaultdict[Any, dict[str, Any]]:
    found: defaultdict[Any, dict[str, Any]] = defaultdict(dict)
    if held:
        found[plain] = {key: whole(value) if isinstance(value, DTensor) else value for key, value in held.items()}
    return found


def _cut(key: str, value: Any, plain: Tensor, cut: Cut) -> Any:
    return cut.piece(value) if is_state(key, value, plain) else value
