"""An optimizer's step on this rank's own pieces, in place of DTensors.

Most optimizers of torch treat every element by itself: on the pieces alone they compute the same, and a DTensor's way
to each of its ops costs the host more than the op. So while such a step runs, the optimizer is handed the pieces, with
its state in pieces too; before and after, parameters and state are DTensors, for schedulers, checkpoints and whoever
looks.
"""

from __future__ import annotations

from collections import defaultdict
from operator import is_
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from meshwright.errors import RunError
from meshwright.runtime.weights.hosted import GroupedStep, hosted_of, is_state
from meshwright.runtime.weights.whole_step import give_back, is_of_matrices, step_whole
from meshwright.torch_compat import dtensor_like, has_step_hooks, local_tensor

HOOKS = 1
"""How many hooks of ours stand before an optimizer's step, and after it (`optimizers`)."""
IN_GROUPS = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)
"""Those whose state may lie on the host."""
ELEMENTWISE = (
    *IN_GROUPS,
    torch.optim.Adadelta,
    torch.optim.Adagrad,
    torch.optim.Adamax,
    torch.optim.ASGD,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.RMSprop,
    torch.optim.Rprop,
)
_PIECE = "meshwright_piece"


def prepare(parameter: nn.Parameter) -> None:
    """From now on an optimizer can step its shard: a plain parameter over the same memory."""
    if isinstance(parameter.data, DTensor):
        setattr(parameter, _PIECE, nn.Parameter(local_tensor(parameter).detach(), requires_grad=False))


class _LocalParameters:
    """What one optimizer is handed. groups: its parameters, and what stands in for them; others stay as they are.
    state: the optimizer's, by what stands in. seen: which tensors that was made from."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.groups = [list(group["params"]) for group in optimizer.param_groups]
        self.locals = [[getattr(one, _PIECE, one) for one in params] for params in self.groups]
        self.pairs = [pair for two in zip(self.groups, self.locals, strict=True) for pair in zip(*two, strict=True)]
        self.state: defaultdict[Any, dict[str, Any]] = defaultdict(dict)
        self.seen: dict[nn.Parameter, list[int]] = {}
        self.stored: Any = None
        found = [(piece, hosted_of(one)) for one, piece in self.pairs]
        self.hosted = {id(piece): hosted for piece, hosted in found if hosted is not None}

    def fits(self, optimizer: torch.optim.Optimizer) -> bool:
        groups = optimizer.param_groups
        return len(groups) == len(self.groups) and all(
            len(group["params"]) == len(own) and all(map(is_, group["params"], own))
            for group, own in zip(groups, self.groups, strict=True)
        )

    def swap_in(self, optimizer: torch.optim.Optimizer) -> None:
        self.stored = optimizer.state
        for one, piece in self.pairs:
            if piece is not one:
                gradient = one.grad
                piece.grad = local_tensor(gradient) if isinstance(gradient, DTensor) else None
            state = self.stored.get(one)
            if state and self.seen.get(one) != [id(value) for value in state.values()]:
                self._to_host(one, piece, state)
                self.seen[one] = [id(value) for value in state.values()]
                self.state[piece] = {k: local_tensor(v) if isinstance(v, DTensor) else v for k, v in state.items()}
        optimizer.state = self.state
        for group, params in zip(optimizer.param_groups, self.locals, strict=True):
            group["params"] = list(params)
        if self.hosted:
            GroupedStep(optimizer, self.state, self.hosted).run()

    def _to_host(self, one: nn.Parameter, piece: nn.Parameter, state: dict[str, Any]) -> None:
        """State that was loaded to the device goes where the plan has it."""
        hosted = self.hosted.get(id(piece))
        for key, value in state.items() if hosted is not None else ():
            local = local_tensor(value) if isinstance(value, DTensor) else value
            if hosted is not None and is_state(key, local, piece) and not hosted.memory.holds(local):
                state[key] = _wrapped(key, hosted.memory.put(local), one, piece)

    def swap_out(self, optimizer: torch.optim.Optimizer) -> None:
        optimizer.state = self.stored
        for group, params in zip(optimizer.param_groups, self.groups, strict=True):
            group["params"] = list(params)
        new = len(self.state) > len(self.seen)
        for one, piece in self.pairs:
            if piece is not one:
                piece.grad = None
            if new and one not in self.seen and self.state.get(piece):
                made = {key: _wrapped(key, value, one, piece) for key, value in self.state[piece].items()}
                self.stored[one], self.seen[one] = made, [id(value) for value in made.values()]
        self.stored = None


def _wrapped(key: str, value: Any, stored: nn.Parameter, piece: nn.Parameter) -> Any:
    return dtensor_like(value, stored) if stored is not piece and is_state(key, value, piece) else value


_LOCAL: WeakKeyDictionary[torch.optim.Optimizer, _LocalParameters] = WeakKeyDictionary()


def swap_in_shards(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    """Before a step; nothing where it may look at more than one element at a time, or somebody else looks at it."""
    closure = any(one is not None for one in (*args[1:], *kwargs.values()))  # the first is the optimizer
    watched = has_step_hooks(optimizer, HOOKS) or hasattr(optimizer, "grad_scale")
    if type(optimizer) not in IN_GROUPS or closure or watched:
        _check_here(optimizer)
    if is_of_matrices(optimizer):
        if closure:
            raise RunError(
                f"{type(optimizer).__name__}.step with a closure, on parameters of a trainer",
                "a step without one: parameters are handed to it whole, one after the other",
                "call trainer.step(batch), then optimizer.step()",
            )
        step_whole(optimizer)
    if type(optimizer) not in ELEMENTWISE or closure or watched:
        return
    local = _LOCAL.get(optimizer)
    if local is None or not local.fits(optimizer):
        local = _LOCAL[optimizer] = _LocalParameters(optimizer)
    local.swap_in(optimizer)


def _check_here(optimizer: torch.optim.Optimizer) -> None:
    """Refuses a step that needs all state at once where the plan keeps it on the host."""
    if any(hosted_of(one) for group in optimizer.param_groups for one in group["params"]):
        names = ", ".join(kind.__name__ for kind in IN_GROUPS)
        raise RunError(
            f"{type(optimizer).__name__} steps on all parameters at once; the plan keeps optimizer state on the host",
            f"one of {names}, without a closure, hooks around its step or a GradScaler: it is stepped in groups",
            "use one of these, or plan without the pin offload",
        )


def swap_out(optimizer: torch.optim.Optimizer) -> None:
    """After it; or before the next, where one has ended with an error."""
    local = _LOCAL.get(optimizer)
    if local is not None and local.stored is not None:
        local.swap_out(optimizer)
    give_back(optimizer)
