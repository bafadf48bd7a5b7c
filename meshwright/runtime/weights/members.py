"""Modules inside an adopted model: called alone, with weights in pieces, they are refused by name."""

from __future__ import annotations

from typing import Any
from weakref import ref

from torch import nn

from meshwright.errors import RunError
from meshwright.runtime.weights.adoption import Adopted, SharedByCopies, lies_in_pieces
from meshwright.runtime.weights.gathering import Gathering
from meshwright.torch_compat import forward_hooks


class MemberForward(SharedByCopies):
    """Before the forward of a module inside an adopted model, or inside a copy of one: its weights have to be whole,
    as they are in `gathered` and while the model's own forward runs."""

    meshwright_only = True

    def __init__(self, name: str, gathering: Gathering) -> None:
        self.name, self._gathering = name, ref(gathering)

    def __call__(self, module: nn.Module, args: Any) -> None:
        gathering = self._gathering()
        whole_now = gathering is not None and (gathering.open or gathering.inside_forward)
        if not whole_now and lies_in_pieces(module):
            raise RunError(
                f"the forward of {self.name!r} alone, a part of a model that mw.parallelize has adopted",
                "trainer.step(batch), which trains the whole model, or whole weights",
                "call it inside `with trainer.gathered() as model:`, which every rank enters; gradients of a part "
                "alone come from a model that returns what you need of it, planned with its loss",
            )


def guard_members(adopted: Adopted, gathering: Gathering) -> None:
    """Every module but the one that has a `Forward` refuses to be called alone while its weights lie in pieces."""
    for name, module in adopted.model.named_modules():
        hooks = forward_hooks(module)[0]
        for key in [key for key, hook in hooks.items() if isinstance(hook, MemberForward)]:
            del hooks[key]  # of a trainer that had adopted it before
        if module not in (adopted.model, gathering.model) and lies_in_pieces(module):
            module.register_forward_pre_hook(MemberForward(name, gathering))
