"""Captures that are made once for all tests of a process: they take most of the time of a small model's run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import wraps

from torch import Tensor, nn

from meshwright.capture import Program
from meshwright.capture import capture as captured

Key = tuple[object, ...]
_OF_TORCH = frozenset(vars(nn.Module()))


def remembering(capture: Callable[..., Program]) -> Callable[..., Program]:
    """`capture`, which hands out again what it made of a model that is built alike, for a batch of the same sizes."""
    known: dict[Key, Program] = {}

    @wraps(capture)
    def found(model: nn.Module, batch: Mapping[str, Tensor], loss: object = None, **options: object) -> Program:
        try:
            key = (*_modules(model), *map(_tensor, batch.values()), *batch, loss, *sorted(options.items()))
            again = known.get(key)
        except (AttributeError, TypeError):  # something that a key cannot hold
            return capture(model, batch, loss, **options)
        if again is None:
            again = known[key] = capture(model, batch, loss, **options)
        return again

    return found


def _modules(model: nn.Module) -> Iterator[object]:
    """All that a capture may see of a model. Raises TypeError where that is not known."""
    places: dict[int, int] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        yield (path, type(module), module.training, *module._modules, *sorted(module._non_persistent_buffers_set))
        if module._forward_hooks or module._forward_pre_hooks:
            raise TypeError("hooks")
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):  # a tied one has its first place
            yield (name, tensor if tensor is None else (places.setdefault(id(tensor), len(places)), *_tensor(tensor)))
        for name, value in vars(module).items():
            if name not in _OF_TORCH:
                yield (name, _plain(value))


def _plain(value: object) -> object:
    if isinstance(value, tuple | list):
        return tuple(map(_plain, value))
    if value is None or isinstance(value, bool | int | float | str | type):
        return (type(value), value)
    raise TypeError(f"{type(value)}")


def _tensor(tensor: Tensor) -> Key:
    return (tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device, tensor.requires_grad)


capture = remembering(captured)
