"""torch.export on fake tensors: the model and the batch are only looked at, nothing of their size is allocated."""

from __future__ import annotations

import copy
import inspect
import traceback
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from meshwright.capture.answers import AnswerFalse, own_line
from meshwright.capture.grouped import grouped_matmuls
from meshwright.capture.opaque import kept_whole
from meshwright.capture.precision import Precision, dtype_in
from meshwright.capture.repeat import trace_alike_once
from meshwright.capture.traps import eager_paths
from meshwright.errors import CaptureError, MeshwrightError, ModelError
from meshwright.torch_compat import DATA_DEPENDENT, FakeMode, fake_mode, fake_tensor, without_reports

Batch = tuple[Tensor, ...] | Mapping[str, Tensor]


class _WithLoss(nn.Module):
    """The model followed by the user's loss; a model that returns its loss needs none."""

    def __init__(
        self, model: nn.Module, loss: Callable[..., Tensor] | None, answers: AbstractContextManager[Any] | None
    ) -> None:
        super().__init__()
        self.model, self.loss, self.answers = model, loss, answers or nullcontext()

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        with self.answers:
            return self._scalar(batch)

    def _scalar(self, batch: dict[str, Tensor]) -> Tensor:
        output = self.model(**batch)
        if self.loss is not None:
            output = self.loss(output, *batch.values())
        found = output["loss"] if isinstance(output, Mapping) and "loss" in output else getattr(output, "loss", output)
        if not isinstance(found, Tensor) or found.dim() != 0:
            raise ModelError(
                f"the model returned {_describe(found)}",
                "a scalar loss, or an output with a scalar `.loss` or `['loss']`",
                "pass `loss=`, a function of (output, *batch) that returns a scalar",
            )
        return found


def _describe(output: object) -> str:
    if not isinstance(output, Tensor):
        return f"a {type(output).__name__}"
    return f"a tensor of shape ({', '.join(str(size) if isinstance(size, int) else 'batch' for size in output.shape)})"


def named_batch(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    """The batch under the names of the model's own arguments."""
    if isinstance(batch, Mapping):
        found = dict(batch)
    else:
        try:
            found = dict(inspect.signature(model.forward).bind(*batch).arguments)
        except TypeError as error:
            raise ModelError(
                f"a batch of {len(batch)} tensors for {type(model).__name__}: {error}",
                f"the arguments of its forward{inspect.signature(model.forward)}",
                "pass one tensor per argument, or a dict by name",
            ) from error
    for name, tensor in found.items():
        if not isinstance(tensor, Tensor) or tensor.dim() == 0 or tensor.shape[0] < 1:
            given = tuple(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
            raise ModelError(f"batch entry {name!r} is {given}", "a tensor with a leading batch dim of at least 1")
    if not found:
        raise ModelError("the batch is empty", "at least one tensor with a leading batch dim")
    return found


def batch_size(batch: Mapping[str, Tensor]) -> int:
    """The leading size that most of the batch's tensors share."""
    sizes = [tensor.shape[0] for tensor in batch.values()]
    return max(sizes, key=lambda size: (sizes.count(size), size))


@dataclass(frozen=True, slots=True)
class Exported:
    """model: the fakes that were exported, in the dtypes the step computes in.

    notes: how the graph was had. warnings: where it is not all that the model does.
    """

    graph: ExportedProgram
    model: nn.Module
    notes: tuple[str, ...]
    warnings: tuple[str, ...]


def export(
    model: nn.Module,
    batch: Mapping[str, Tensor],
    loss: Callable[..., Tensor] | None = None,
    *,
    precision: Precision | None = None,
    once: bool = True,
    vary: bool = True,
) -> Exported:
    """Export the training forward with a batch that may vary. The user's model is not touched.

    once: layers that are alike are traced once (see `repeat`). vary: whether the batch is a size of its own.

    Where Python asks for a tensor's value, it is exported once more with every such question answered False.
    """
    try:
        try:
            with without_reports():
                return _export(model, batch, loss, precision, None, once, vary)
        except DATA_DEPENDENT:
            with without_reports():
                return _export(model, batch, loss, precision, AnswerFalse(), once, vary)
    except MeshwrightError:
        raise
    except Exception as error:
        shapes = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in batch.items())
        line = own_line(traceback.extract_tb(error.__traceback__))
        raise CaptureError(
            f"{type(model).__name__} could not be captured with the batch {shapes}: {_first_line(error)}, at {line}",
            "a forward that torch.export can follow on this batch",
            "check that the batch fits the model and that no Python branch depends on tensor values",
        ) from error


def _export(
    model: nn.Module,
    batch: Mapping[str, Tensor],
    loss: Callable[..., Tensor] | None,
    precision: Precision | None,
    answers: AnswerFalse | None,
    once: bool,
    vary: bool,
) -> Exported:
    size = batch_size(batch)
    mode = fake_mode()

    def fake(tensor: Tensor) -> Tensor:
        # Export specialises sizes of 0 and 1, so a batch of 1 is captured at 2; dim 0 varies in any case.
        leading = max(size, 2) if vary and tensor.shape[0] == size else tensor.shape[0]
        return fake_tensor((leading, *tensor.shape[1:]), dtype_in(tensor, precision), mode)

    shadow = _shadow(model, mode, precision)
    if once:
        trace_alike_once(shadow)
    wrapper = _WithLoss(shadow, loss, answers)
    inputs = {name: fake(tensor) for name, tensor in batch.items()}
    dims = {name: {0: Dim.AUTO} if vary and tensor.shape[0] == size else {} for name, tensor in batch.items()}
    with eager_paths(batch), grouped_matmuls(), kept_whole() as whole:
        graph = torch.export.export(wrapper, (inputs,), dynamic_shapes=(dims,), strict=False)
    notes = tuple(f"{name} is kept as one op" for name in whole)
    return Exported(graph, shadow, notes, tuple(answers.warnings) if answers else ())


def _shadow(model: nn.Module, mode: FakeMode, precision: Precision | None) -> nn.Module:
    """A copy of the model whose parameters and buffers are fakes; shared tensors stay shared."""
    memo: dict[int, Any] = {}
    for parameter in model.parameters():
        fake = fake_tensor(tuple(parameter.shape), dtype_in(parameter, precision), mode)
        memo[id(parameter)] = nn.Parameter(fake, requires_grad=parameter.requires_grad)
    for buffer in model.buffers():
        memo[id(buffer)] = fake_tensor(tuple(buffer.shape), dtype_in(buffer, precision), mode)
    return copy.deepcopy(model, memo)


def _first_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
