"""Why a model could not be exported, in its own terms: its line, and what to do about it."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from meshwright.capture.tracing.lines import UNKNOWN_LINE, own_line
from meshwright.errors import CaptureError, MeshwrightError, ModelError
from meshwright.torch_compat import DATA_DEPENDENT, backward_hooks, global_hooks, gradient_hooks

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def refusal(
    model: nn.Module, batch: Mapping[str, Tensor], error: Exception, loss: Callable[..., Any] | None = None
) -> MeshwrightError:
    """What to say of an error that export raised."""
    name, line = type(model).__name__, own_line(traceback.extract_tb(error.__traceback__))
    place = "" if line == UNKNOWN_LINE else f", at {line}"
    if isinstance(error, DATA_DEPENDENT):
        return CaptureError(
            f"{name} makes a Python number of a tensor's value{place}",
            "a forward whose Python code follows from shapes and settings alone",
            "keep it as a tensor: no `.item()`, `int(...)` or `float(...)`; choose with `torch.where`",
        )
    blank = next(_unregistered(model), "")
    if blank and "meta" in str(error):
        return CaptureError(
            f"the model holds a tensor {blank!r} outside its parameters and buffers{place}",
            "every tensor of the model registered",
            "register it with `register_buffer`",
        )
    if loss is not None and _is_in(loss, error):
        return CaptureError(
            f"the loss function could not be captured: {_said(error)}{place}",
            "a function of the model's output and of entries of the batch",
            "let the forward return what the loss needs (auxiliary losses too): the loss function is given its output",
        )
    shapes = ", ".join(f"{key} {tuple(tensor.shape)}" for key, tensor in batch.items())
    return CaptureError(
        f"{name} could not be captured with the batch {shapes}: {_said(error)}{place}",
        "a forward that torch.export can follow on this batch",
        "check that the batch fits the model and that no Python branch depends on tensor values",
    )


def _is_in(loss: Callable[..., Any], error: Exception) -> bool:
    """Whether the error came from the loss rather than from the model."""
    called = getattr(loss, "forward" if isinstance(loss, nn.Module) else "__call__")
    function = loss.func if isinstance(loss, partial) else loss
    codes = [getattr(getattr(one, "__func__", one), "__code__", None) for one in (function, called)]
    return any(frame.f_code in codes for frame, _ in traceback.walk_tb(error.__traceback__))


def check_model(model: nn.Module) -> None:
    """Refuses models with what export would leave out: hooks on gradients, and parameters without a shape."""
    _check_modules(model)
    for name, parameter in model.named_parameters():
        if isinstance(parameter, UninitializedParameter):
            raise ModelError(
                f"{name} of {type(model).__name__} has no shape yet",
                "a model whose parameters exist",
                "run it once on a batch, or give the layer its sizes",
            )
        if gradient_hooks(parameter):
            raise _hooked(f"a hook on the gradient of {name!r} (`register_hook`, `register_post_accumulate_grad_hook`)")
    if global_hooks()[1]:
        raise _hooked("a backward hook on all modules (`register_module_full_backward_hook`)")


def _check_modules(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if backward_hooks(module):
            raise _hooked(f"a backward hook on the module {name or type(model).__name__!r}")
        if (
            isinstance(module, BATCH_NORMS)
            and module.momentum is None
            and module.training
            and module.track_running_stats
        ):
            raise ModelError(
                f"{name!r}, a {type(module).__name__} with momentum=None: its running averages count batches",
                "running averages with a momentum",
                "give it one (0.1 is the default), or track_running_stats=False",
            )
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None:
            raise ModelError(
                f"{name!r}, an {type(module).__name__} with max_norm={module.max_norm}, which writes to its weight in "
                "every forward",
                "a forward that leaves parameters alone",
                "normalise what it returns, or its weight after each optimizer step",
            )


def _hooked(what: str) -> ModelError:
    return ModelError(
        what,
        "gradients that autograd computes and nothing changes on the way",
        "remove it; what it does to gradients can be a torch.autograd.Function in the forward, or be done to "
        "`parameter.grad` after `trainer.step`",
    )


def _unregistered(model: nn.Module) -> Iterator[str]:
    """Tensors without storage that modules hold as plain attributes."""
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if isinstance(value, Tensor) and value.is_meta:
                yield f"{path}.{name}".removeprefix(".")


def _said(error: Exception) -> str:
    """The first line of what torch says; its symbol for the batch is called so."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return re.sub(r"\bs\d+\b", "batch", lines[0]) if lines else type(error).__name__
