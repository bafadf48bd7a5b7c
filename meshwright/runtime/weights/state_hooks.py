"""An adopted model's own `state_dict` and `load_state_dict`: pieces come out, or plain tensors where there is one rank;
pieces or whole plain tensors go in."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils.hooks import RemovableHandle

from meshwright.models.joined import Joined
from meshwright.runtime.weights.adoption import Adopted, SharedByCopies
from meshwright.runtime.weights.gathering import Gathering
from meshwright.runtime.weights.in_pieces import InPieces

_HANDLES: WeakKeyDictionary[nn.Module, tuple[RemovableHandle, ...]] = WeakKeyDictionary()


def hook_state(adopted: Adopted, gathering: Gathering) -> None:
    """Of the user's modules: the model, and a loss that has parameters; and of every module in them, asked alone."""
    model = adopted.model
    roots = {"model.": model.model, "loss.": model.loss} if isinstance(model, Joined) else {"": model}
    away = set(gathering.buffer_homes) - gathering.own_buffers
    for start, root in roots.items():
        for member, module in root.named_modules():
            path = f"{start}{member}." if member else start
            before, after = _BeforeLoad(adopted, gathering, path, away), _AfterStateDict(gathering, path, away)
            before.member = after.member = bool(member)
            for handle in _HANDLES.pop(module, ()):
                handle.remove()  # of a trainer that had adopted it before
            _HANDLES[module] = (
                module.register_load_state_dict_pre_hook(before),
                module.register_state_dict_post_hook(after),
            )


class _Hook(SharedByCopies):
    """path: of the module in what was adopted. away: buffers that other stages change. Copies of models have it.

    member: of a module inside, which has nothing to do where the state of what it is in is asked for.
    """

    member = False

    def __init__(self, gathering: Gathering, path: str, away: Collection[str]) -> None:
        self._gathering, self.path, self.away = ref(gathering), path, away

    def is_idle(self, prefix: str) -> bool:
        """Weights are whole now, or another's hook does it."""
        gathering = self._gathering()
        return (self.member and prefix != "") or (gathering is not None and gathering.open)

    def own(self, names: Iterable[str]) -> Iterator[str]:
        """Those of this module."""
        return (name for name in names if name.startswith(self.path))

    def key(self, name: str, prefix: str) -> str:
        return prefix + name.removeprefix(self.path)


class _BeforeLoad(_Hook):
    """Whole plain tensors are cut; what lives on other stages is left out."""

    def __init__(self, adopted: Adopted, gathering: Gathering, path: str, away: Collection[str]) -> None:
        super().__init__(gathering, path, away)
        self.names, self.cuts = adopted.names, adopted.cuts
        self.elsewhere, self.buffers = adopted.elsewhere, adopted.buffers

    def __call__(self, module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
        if self.is_idle(prefix):
            return
        for name, key in self._keys(prefix):
            found: Any = state.get(key)
            cut = self.cuts.get(name)
            if name in self.elsewhere:
                state.pop(key, None)
            elif cut is not None and _is_plain(found) and found.shape == cut.like.shape:
                state[key] = cut.piece(found)
        for name in self.own(self.away):
            if name in self.buffers:
                state.setdefault(self.key(name, prefix), self.buffers[name][2])

    def _keys(self, prefix: str) -> Iterator[tuple[str, str]]:
        for name in self.own(self.names):
            yield from ((name, self.key(one, prefix)) for one in self.names[name])


class _AfterStateDict(_Hook):
    """The state is without buffers that other stages keep up to date, and not to be pickled. The only rank of a
    job has whole weights, which are plain tensors there."""

    def __init__(self, gathering: Gathering, path: str, away: Collection[str]) -> None:
        super().__init__(gathering, path, away)
        self.alone = dist.get_world_size() == 1

    def __call__(self, module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
        if self.is_idle(prefix):
            return
        if self.alone:
            for key, value in state.items():
                if isinstance(value, DTensor) and not value.requires_grad:
                    state[key] = value.to_local()
            return
        for name in self.own(self.away):
            state.pop(self.key(name, prefix), None)
        with suppress(AttributeError):  # of a dict that the user gives
            state.in_pieces = IN_PIECES  # type: ignore[attr-defined]


IN_PIECES = InPieces(
    "a model that mw.parallelize has adopted",
    "call state = trainer.full_state_dict() on every rank and torch.save(state, path) on one; mw.save and "
    "torch.distributed.checkpoint write the pieces of all ranks",
)


def _is_plain(found: Any) -> bool:
    return isinstance(found, Tensor) and not isinstance(found, DTensor)
