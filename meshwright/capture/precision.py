"""In which dtype a step computes: the one place that says what `fp32`, `bf16`, `mixed` and `fp16` mean for a model.

`bf16` and `mixed` compute alike, as `model.to(torch.bfloat16)` does: every float parameter, buffer and batch entry in
bfloat16. They differ in what is stored: `mixed` keeps parameters, gradients and optimizer state in fp32 and computes
in copies. `fp16` is `mixed` in float16, with a loss scale (`runtime.weights.scaling`).
"""

from __future__ import annotations

from collections.abc import Container
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from meshwright.errors import ModelError

Precision = Literal["fp32", "bf16", "mixed", "fp16"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
HALVES = (torch.bfloat16, torch.float16)
COMPUTES = {"bf16": torch.bfloat16, "mixed": torch.bfloat16, "fp16": torch.float16}
WIDENED = ("mixed", "fp16")
"""Those whose parameters, gradients and optimizer state are float32 where the step computes in half precision."""


def precisions_of(dtypes: Container[str]) -> tuple[Precision, ...]:
    """Those that a model may have been captured in whose parameters have these dtypes."""
    if "bfloat16" in dtypes:
        return ("bf16", "mixed")
    return ("fp16",) if "float16" in dtypes else ("fp32",)


def compute_dtype(precision: Precision | None) -> torch.dtype | None:
    """The dtype that float tensors are captured in; None where they keep their own."""
    if precision not in (None, *PRECISIONS):
        raise ModelError(f"precision {precision!r}", ", ".join(PRECISIONS), "name one of these")
    return COMPUTES.get(precision or "")


def dtype_in(tensor: Tensor, precision: Precision | None) -> torch.dtype:
    """The dtype of a parameter, buffer or batch entry in a step of this precision; whole numbers stay."""
    return compute_dtype(precision) or tensor.dtype if tensor.is_floating_point() else tensor.dtype


def check_precision(model: nn.Module, precision: Precision | None) -> None:
    """A model in half precision cannot be captured in single: its numbers are gone."""
    compute_dtype(precision)
    found = {parameter.dtype for parameter in model.parameters()}
    if precision == "fp32" and found & set(HALVES):
        names = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in found))
        raise ModelError(
            f"precision fp32 of a model whose parameters are {names}", "parameters in float32", "say precision='bf16'"
        )
