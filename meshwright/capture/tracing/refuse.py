"""Why a model could not be exported, in its own terms: its line, and what to do about it."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator, Mapping

from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from meshwright.capture.tracing.answers import UNKNOWN_LINE, own_line
from meshwright.errors import CaptureError, MeshwrightError, ModelError
from meshwright.torch_compat import DATA_DEPENDENT


def refusal(model: nn.Module, batch: Mapping[str, Tensor], error: Exception) -> MeshwrightError:
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
    shapes = ", ".join(f"{key} {tuple(tensor.shape)}" for key, tensor in batch.items())
    return CaptureError(
        f"{name} could not be captured with the batch {shapes}: {_said(error)}{place}",
        "a forward that torch.export can follow on this batch",
        "check that the batch fits the model and that no Python branch depends on tensor values",
    )


def check_model(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if isinstance(parameter, UninitializedParameter):
            raise ModelError(
                f"{name} of {type(model).__name__} has no shape yet",
                "a model whose parameters exist",
                "run it once on a batch, or give the layer its sizes",
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
