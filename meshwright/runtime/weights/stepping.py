"""The optimizers that step a trainer's parameters: found when a step is over, told apart from those that train nothing.

The user makes the optimizer and steps it; the trainer is not told. So it looks among the process's optimizers for those
that hold its parameters, with its first step and whenever none of those that it knows has stepped since the last one.
One that holds tensors which the model no longer has, or that the model was copied from, would train nothing and say
nothing: it is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from weakref import WeakSet, ref

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from meshwright.errors import RunError, counted
from meshwright.runtime.weights.adoption import Cut
from meshwright.runtime.weights.optimizers import held, is_stored, optimizers_alive, steps_of, watch
from meshwright.runtime.weights.regions import whole
from meshwright.runtime.weights.stage_state import OwnStage
from meshwright.torch_compat import local_tensor, writes_seen

Optimizer = torch.optim.Optimizer


class Stepping:
    """replaced: parameters that the model had before it was adopted. copied: those of the model that this one is a copy
    of, which somebody else may train."""

    def __init__(
        self,
        stored: Mapping[str, nn.Parameter],
        replaced: Mapping[str, Tensor],
        copied: Iterable[Tensor] = (),
        before: Callable[[], None] | None = None,
    ) -> None:
        """before: called before an optimizer of these parameters steps."""
        self._stored, self._before = stored, before
        self._own = {id(parameter) for parameter in stored.values()}
        self._replaced = {id(old): (ref(old), name) for name, old in replaced.items()}
        self._copied = {id(old): ref(old) for old in copied}
        self._known: WeakSet[Optimizer] = WeakSet()
        self._steps = self._writes = self._found = 0
        self._fruitless = self._left = 0

    def before(self) -> None:
        """Before a step: gradients that nobody has cleared, of parameters that nobody has changed, are examined."""
        left = self._own and not self._known and any(one.grad is not None for one in self._stored.values())
        if not left or self._count_writes() != self._writes:
            return
        self._left += 1
        if self._left & (self._left - 1):
            return
        for optimizer in optimizers_alive():
            if self._is_taken_for_ours(optimizer):
                raise RunError(
                    f"gradients of the last step are still there, and {type(optimizer).__name__} holds "
                    f"{counted(len(list(held(optimizer))), 'tensor')} that this trainer does not train",
                    "an optimizer over trainer.parameters(), or over model.parameters() of an adopted model",
                    "make it so; to add up gradients without an optimizer, clear or scale them yourself in between",
                )

    def after(self) -> None:
        """After a step, before the user's optimizer takes its own."""
        self._writes = 0 if self._known else self._count_writes()
        steps = sum(map(steps_of, self._known))
        if len(self._known) < self._found:  # one is gone: another may have taken its place
            self._fruitless = 0
        elif self._known and steps != self._steps:
            self._steps, self._fruitless = steps, 0
            return
        self._fruitless += 1
        if self._fruitless & (self._fruitless - 1):  # it takes some ms: after 1, 2, 4, ... steps
            return
        for optimizer in optimizers_alive():
            self._check_replaced(optimizer)
            if optimizer not in self._known and any(id(one) in self._own for one in held(optimizer)):
                watch(optimizer, self._before)
                self._known.add(optimizer)
        self._found = len(self._known)

    def hand_over(self, cuts: Mapping[str, Cut]) -> None:
        """Optimizers over the parameters that the model had before get the stored ones in their place, and keep their
        state, cut as the parameter is; those of other stages leave them."""
        for optimizer in optimizers_alive():
            if not any(id(one) in self._replaced for one in held(optimizer)):
                continue
            now = [[self._now(one) for one in group["params"]] for group in optimizer.param_groups]
            if self._before is not None:
                optimizer.register_load_state_dict_pre_hook(OwnStage([[one is not None for one in few] for few in now]))
            for group, few in zip(optimizer.param_groups, now, strict=True):
                group["params"] = [one for one in few if one is not None]
            for one in [one for one in optimizer.state if isinstance(one, Tensor) and id(one) in self._replaced]:
                state, name = optimizer.state.pop(one), self._replaced[id(one)][1]
                if name in self._stored:
                    parts = {key: _cut(key, value, cuts[name]) for key, value in state.items()}
                    optimizer.state[self._stored[name]] = parts

    def _now(self, parameter: Tensor) -> Tensor | None:
        known = self._replaced.get(id(parameter))
        return parameter if known is None else self._stored.get(known[1])

    def _check_replaced(self, optimizer: Optimizer) -> None:
        for one in held(optimizer):
            known = self._replaced.get(id(one))
            if known is not None and known[0]() is one:
                raise RunError(
                    f"{type(optimizer).__name__} holds {known[1]} as it was before mw.parallelize, and trains nothing",
                    "an optimizer over trainer.parameters() or model.parameters()",
                    "make it before parallelize, or of parameters that the model has after it",
                )

    def _is_taken_for_ours(self, optimizer: Optimizer) -> bool:
        """Whether it holds the parameters of the model that ours is a copy of, or such as have the shapes of ours."""
        params = list(held(optimizer))
        if any(is_stored(one) for one in params):
            return False
        if any((known := self._copied.get(id(one))) is not None and known() is one for one in params):
            return True
        shapes = {tuple(one.shape) for one in self._stored.values()}
        return bool(params) and all(tuple(one.shape) in shapes for one in params)

    def _count_writes(self) -> int:
        return sum(writes_seen(local_tensor(parameter)) for parameter in self._stored.values())


def _cut(key: str, value: object, cut: Cut) -> object:
    alike = isinstance(value, Tensor) and key != "step" and value.dim() and value.shape == cut.like.shape
    if not alike:
        return value
    assert isinstance(value, Tensor)
    return cut.piece(whole(value) if isinstance(value, DTensor) else value)
