"""Models built without their weights: what would have initialised each tensor is written down and run later, alone.

A function that builds a model runs on the meta device while every operator is recorded. One tensor at a time is then
made for real, by the recorded operators that it needs, from a seed and its own name: the whole model is never there,
and its weights are the same under every plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from meshwright.errors import RunError
from meshwright.torch_compat import RecordingMode, storage_key, written_arguments

CPU, META = torch.device("cpu"), torch.device("meta")

_GIVEN = (torch.tensor, torch.as_tensor, torch.asarray)
"""Functions whose numbers come from Python, by no operator."""


@dataclass(frozen=True, slots=True)
class _Call:
    """One recorded operator. reads, writes: storages; results are written too."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: tuple[Tensor, ...]
    reads: frozenset[int]
    writes: frozenset[int]


class _GivenNumbers(TorchFunctionMode):
    """Calls `note(made, result)` for each tensor on the meta device that is made of Python's numbers."""

    def __init__(self, note: Callable[[Tensor, Tensor], None]) -> None:
        super().__init__()
        self._note = note

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        result = func(*args, **given)
        if func in _GIVEN and result.is_meta and not any(True for _ in _tensors([args, given])):
            # At once: a list that is given may change later.
            self._note(func(*args, **given | {"device": CPU}).detach(), result)
        return result


class Deferred:
    """A model on the meta device, and how each of its tensors is made."""

    def __init__(self, build: Callable[[], nn.Module], seed: int) -> None:
        self.seed = seed
        self._calls: list[_Call] = []
        try:
            with torch.device("meta"), RecordingMode(self._note), _GivenNumbers(self._note_given):
                self.model = build()
        except (RuntimeError, NotImplementedError) as error:
            raise RunError(
                f"the model cannot be built without its weights: {str(error).splitlines()[0]}",
                "a function whose operators run on the meta device",
                "build the model and pass it instead of the function",
            ) from error

    def tensor(self, name: str, like: Tensor) -> Tensor:
        """The tensor that `like`, one of the model's, stands for."""
        calls = self._needed(storage_key(like))
        if all(str(call.function).startswith("aten.empty") for call in calls) or not _complete(calls):
            raise RunError(
                f"{name} is never initialised where the model is built on the meta device",
                "a function that initialises every parameter and buffer",
                "build the model and pass it, or pass weights=",
            )
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(_seed(self.seed, name))
            return self._replay(calls, like)

    def _note(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        results = tuple(_tensors([result]))
        written = {storage_key(tensor) for tensor in (*results, *written_arguments(function, args, kwargs))}
        read = {storage_key(tensor) for tensor in _tensors([args, kwargs])}
        self._calls.append(_Call(function, args, kwargs, results, frozenset(read), frozenset(written)))

    def _note_given(self, made: Tensor, result: Tensor) -> None:
        """A copy each time: operators may change it in place."""
        self._calls.append(_Call(made.clone, (), {}, (result,), frozenset(), frozenset([storage_key(result)])))

    def _needed(self, storage: int) -> list[_Call]:
        wanted, found = {storage}, []
        for call in reversed(self._calls):
            if wanted & call.writes:
                wanted |= call.reads
                found.append(call)
        return found[::-1]

    def _replay(self, calls: list[_Call], like: Tensor) -> Tensor:
        real: dict[int, Tensor] = {}

        def leaf(item: Any) -> Any:
            if isinstance(item, Tensor) and storage_key(item) in real:
                base = real[storage_key(item)]
                return torch.as_strided(base, item.size(), item.stride(), item.storage_offset())
            return CPU if item == META and isinstance(item, torch.device) else item

        for call in calls:
            result = call.function(*_map(call.args, leaf), **_map(call.kwargs, leaf))
            for meta, made in zip(call.results, _tensors([result]), strict=True):
                real.setdefault(storage_key(meta), made)
        made = leaf(like)
        assert isinstance(made, Tensor)
        return made.detach()


def _complete(calls: list[_Call]) -> bool:
    """Whether everything that is read on the meta device was made there by a call before."""
    made: set[int] = set()
    for call in calls:
        if any(tensor.is_meta and storage_key(tensor) not in made for tensor in _tensors([call.args, call.kwargs])):
            return False
        made |= call.writes
    return True


def _map(tree: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(tree, dict):
        return {key: _map(item, change) for key, item in tree.items()}
    return type(tree)(_map(item, change) for item in tree) if isinstance(tree, list | tuple) else change(tree)


def _seed(seed: int, name: str) -> int:
    return int.from_bytes(sha256(f"{seed} {name}".encode()).digest()[:8], "big") >> 1


def _tensors(tree: Any) -> Iterable[Tensor]:
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, dict):
        yield from _tensors(list(tree.values()))
    elif isinstance(tree, list | tuple):
        for item in tree:
            yield from _tensors(item)
