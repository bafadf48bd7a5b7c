"""The batch by name: what the model takes, and what the loss takes besides."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from meshwright.errors import ModelError, what_is
from meshwright.models.batch import batch_names, for_the_loss

Batch = Tensor | tuple[Any, ...] | Mapping[str, Any]
"""One tensor, or several entries by position or by name: tensors, plain values, dicts, lists and tuples of these."""
Loss = Callable[..., Tensor]


def check_given(model: object, batch: object, loss: object) -> None:
    """Refuses what is no model, no batch or no loss function at all."""
    if not isinstance(model, nn.Module):
        todo = "make an instance of it" if isinstance(model, type) else "give the model itself"
        raise ModelError(f"{what_is(model)} as the model", "an nn.Module", todo)
    _check_wrappers(model, "model")
    if isinstance(loss, nn.Module):
        _check_wrappers(loss, "loss")
    if not isinstance(batch, Tensor | tuple | list | Mapping):
        raise ModelError(f"{what_is(batch)} as the batch", "a tensor, a tuple of tensors or a dict by name", "give one")
    if loss is not None and (not callable(loss) or (isinstance(loss, type) and issubclass(loss, nn.Module))):
        todo = "write `lambda output, target: ...`, or give none where the model returns its loss"
        raise ModelError(f"{what_is(loss)} as the loss", "a callable that returns the loss", todo)


_WRAPPERS = {
    "DataParallel": "give what it wraps (`model.module`)",
    "DistributedDataParallel": "give what it wraps (`model.module`)",
    "FullyShardedDataParallel": "give what it wraps (`model.module`)",
    "FSDPModule": "leave out fully_shard: a plan shards parameters where that is faster, or as pinned (zero=3)",
    "OptimizedModule": "give what torch.compile was given, and plan with compile=True",
    "ScriptModule": "give the module that torch.jit.script or torch.jit.trace was given",
}
"""Of torch's own, by name, with what to do: plans take their place."""


def _check_wrappers(given: nn.Module, role: str) -> None:
    for name, module in given.named_modules():
        own = {one.__name__ for one in type(module).__mro__ if one.__module__.startswith("torch.")}
        for wrapper, todo in _WRAPPERS.items():
            if wrapper in own:
                where = f"{name!r} of the {role} is" if name else f"the {role} is"
                raise ModelError(f"{where} wrapped by torch's {wrapper}", f"the plain {role}", todo)


def named_batch(model: nn.Module, batch: Batch, loss: Loss | None = None) -> dict[str, Any]:
    """The batch under the names of the model's own arguments, and what the loss alone takes under the loss's."""
    if isinstance(batch, Tensor):
        batch = (batch,)
    if isinstance(batch, Mapping):
        found = batch = dict(batch)
    else:
        found = dict(zip(batch_names(model, loss, len(batch)), batch, strict=False))
    taken = [name for name in found if loss is None or name not in for_the_loss(model, found)]
    if not found:
        raise ModelError("the batch is empty", "at least one tensor with a leading batch dim", "give it a tensor")
    if len(found) < len(batch) or not _takes(model, (), taken):
        raise ModelError(
            f"a batch of {', '.join(found) if found is batch else f'{len(batch)} tensors'} for {type(model).__name__}",
            f"the arguments of its forward{inspect.signature(model.forward)}, and with a loss function its targets",
            "pass one tensor per argument, or a dict by name",
        )
    if isinstance(loss, nn.Module) and any(True for _ in loss.parameters()):
        raise ModelError(
            f"a loss function with parameters of its own ({type(loss).__name__})",
            "one without",
            "make it a part of the model, which then returns the loss",
        )
    targets = for_the_loss(model, found) or tuple(found)
    if loss is not None and not _takes(loss, (None, *targets), ()):
        raise ModelError(
            f"a loss function that does not take (output, {', '.join(targets)})",
            "a function of the output and what the model does not take; of the whole batch, if it takes all",
            "write `lambda output, target: ...`",
        )
    return found


def batch_size(batch: Mapping[str, Tensor]) -> int:
    """The leading size that most of the batch's tensors share; those without dims are the same for all samples."""
    sizes = [tensor.shape[0] for tensor in batch.values() if tensor.dim()]
    return max(sizes, key=lambda size: (sizes.count(size), size))


def check_tensors(found: Mapping[str, Tensor]) -> None:
    if not any(tensor.dim() for tensor in found.values()):
        raise ModelError("the batch has no tensor", "at least one with a leading batch dim", "give it a tensor")
    for name, tensor in found.items():
        if tensor.shape[:1] == (0,):
            raise ModelError(
                f"batch entry {name!r} is {tuple(tensor.shape)}",
                "a tensor with a leading batch dim of at least 1, or one without dims",
                "plan with a batch that has samples",
            )


def _takes(function: nn.Module | Callable[..., Any], given: tuple[Any, ...], names: Any) -> bool:
    """Whether a call with these arguments fits; a function written in C will say so itself."""
    try:
        signature = inspect.signature(getattr(function, "forward", function))
    except (TypeError, ValueError):
        return True
    try:
        signature.bind(*given, **dict.fromkeys(names))
    except TypeError:
        return False
    return True
