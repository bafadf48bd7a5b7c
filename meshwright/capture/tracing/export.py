"""torch.export on fake tensors: the model and the batch are only looked at, nothing of their size is allocated."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from meshwright.capture.batch import batch_size
from meshwright.capture.precision import Precision, dtype_in
from meshwright.capture.tracing.answers import AnswerFalse
from meshwright.capture.tracing.grouped import grouped_matmuls
from meshwright.capture.tracing.opaque import kept_whole
from meshwright.capture.tracing.refuse import check_model, refusal
from meshwright.capture.tracing.repeat import NotAlikeError, trace_alike_once
from meshwright.capture.tracing.traps import eager_paths
from meshwright.errors import MeshwrightError, ModelError
from meshwright.models.batch import for_the_loss
from meshwright.torch_compat import DATA_DEPENDENT, FakeMode, fake_mode, fake_tensor, without_reports


class _WithLoss(nn.Module):
    """The model followed by the user's loss; a model that returns its loss needs none.

    targets: the entries of the batch that are for the loss alone.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[..., Tensor] | None,
        targets: tuple[str, ...],
        answers: AbstractContextManager[Any] | None,
    ) -> None:
        super().__init__()
        self.model, self.targets, self.answers = model, targets, answers or nullcontext()
        # Not as a child: a loss's own tensors (weights of classes) are constants, not the model's buffers.
        self.loss: Callable[..., Tensor] | None = loss.__call__ if isinstance(loss, nn.Module) else loss

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        with self.answers:
            return self._scalar(batch)

    def _scalar(self, batch: dict[str, Tensor]) -> Tensor:
        output = self.model(**{name: tensor for name, tensor in batch.items() if name not in self.targets})
        if self.loss is not None:
            output = self.loss(output, *(batch[name] for name in self.targets or batch))
        found = output["loss"] if isinstance(output, Mapping) and "loss" in output else getattr(output, "loss", output)
        if not isinstance(found, Tensor) or found.dim() != 0:
            if self.loss is not None:
                raise ModelError(
                    f"the loss function returned {_describe(found)}", "a scalar", "take its mean or sum over the batch"
                )
            raise ModelError(
                f"the model returned {_describe(found)}",
                "a scalar loss, or an output with a scalar `.loss` or `['loss']`",
                "pass `loss=` (or return it third): a function of the output and what the model does not take",
            )
        return found


def _describe(output: object) -> str:
    if not isinstance(output, Tensor):
        return f"a {type(output).__name__}"
    return f"a tensor of shape ({', '.join(str(size) if isinstance(size, int) else 'batch' for size in output.shape)})"


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
    check_model(model)
    try:
        try:
            with without_reports():
                return _export(model, batch, loss, precision, None, once, vary)
        except DATA_DEPENDENT:
            with without_reports():
                return _export(model, batch, loss, precision, AnswerFalse(), once, vary)
    except (MeshwrightError, NotAlikeError):
        raise
    except Exception as error:
        raise refusal(model, batch, error) from error


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
    wrapper = _WithLoss(shadow, loss, for_the_loss(model, batch), answers)
    inputs = {name: fake(tensor) for name, tensor in batch.items()}
    dims = {name: {0: Dim.AUTO} if vary and tensor.shape[0] == size else {} for name, tensor in batch.items()}
    with eager_paths(batch), grouped_matmuls(), kept_whole() as whole, warnings.catch_warnings():
        # `nn.LSTM` puts its own weights in a list when it runs.
        warnings.filterwarnings("ignore", message=r"The tensor attributes? .*_flat_weights")
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
