"""Types and numbers of traced tensors, in a Program's words: sizes are polynomials in the batch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from meshwright.capture.program import Parameter, TensorType
from meshwright.capture.sizes import BatchFloat, Size, fit_size
from meshwright.capture.tracing.lines import traced_line
from meshwright.errors import CaptureError
from meshwright.torch_compat import has_unbacked_symbol, symbolic_value


@dataclass(frozen=True, slots=True)
class Unknown:
    """A number that only the data would tell, or that is no polynomial in the batch; fine if only asserts read it."""

    node: fx.Node
    of_data: bool


def tensor_type(tensor: Tensor) -> TensorType:
    return TensorType(tuple(traced_size(size) for size in tensor.shape), str(tensor.dtype).removeprefix("torch."))


def traced_number(node: fx.Node, value: Any) -> Any:
    if isinstance(value, int | float):
        return value
    if isinstance(value, torch.SymInt | torch.SymFloat) and not has_unbacked_symbol(value):
        found = fit_size(lambda batch: symbolic_value(value, batch))
        if found is not None and isinstance(value, torch.SymFloat):
            return BatchFloat(found.coefficients)
        if found is not None or isinstance(value, torch.SymInt):
            return traced_size(value)
    of_data = not isinstance(value, torch.SymInt | torch.SymFloat) or has_unbacked_symbol(value)
    return Unknown(node, of_data)


def unknown_number(where: str, number: Unknown) -> CaptureError:
    line = traced_line(number.node.meta.get("stack_trace") or "")
    if number.of_data:
        return CaptureError(
            f"{where} uses a number that depends on the data ({number.node.target}){line}",
            "sizes and numbers that follow from the shapes",
            "keep it as a tensor, without `.item()`",
        )
    return CaptureError(
        f"{where} uses a number that is no polynomial in the batch ({number.node.target}){line}",
        "numbers such as the batch size itself, or multiples of it",
        "divide by the batch size instead of multiplying by a fraction of it",
    )


def traced_size(size: Any) -> Size:
    if isinstance(size, int):
        return size
    if has_unbacked_symbol(size):
        raise CaptureError(
            "a tensor's size depends on the data", "sizes that follow from the shapes", "pad it to a fixed size"
        )
    found = fit_size(lambda batch: symbolic_value(size, batch))
    if found is None:
        raise CaptureError(
            f"a tensor has size {size}, where the symbol is the batch",
            "sizes that are polynomials in the batch",
            "capture at the batch you train with; a batch-dependent shape of this kind is not supported",
        )
    return found.coefficients[0] if not any(found.coefficients[1:]) else found


def held_tensors(named: Iterable[tuple[str, Tensor]]) -> tuple[Parameter, ...]:
    """Parameters or buffers under their first names. Equal types are one object: a deep model has few, and they can be
    counted quickly."""
    names: dict[int, tuple[Tensor, list[str]]] = {}
    for name, tensor in named:
        names.setdefault(id(tensor), (tensor, []))[1].append(name)
    types: dict[TensorType, TensorType] = {}
    found = []
    for tensor, known in names.values():
        type_ = tensor_type(tensor)
        found.append(Parameter(known[0], types.setdefault(type_, type_), tensor.requires_grad, tuple(known[1:])))
    return tuple(found)
