"""torch.export on fake tensors: the model and the batch are only looked at, nothing of their size is allocated."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from meshwright.capture.batch import batch_size
from meshwright.capture.precision import Precision, dtype_in
from meshwright.capture.tracing.alone import as_one_process
from meshwright.capture.tracing.clock import watched_clock
from meshwright.capture.tracing.code import forgotten_caches, modules_around
from meshwright.capture.tracing.ctc import ctc_losses
from meshwright.capture.tracing.entropy import refused_entropy
from meshwright.capture.tracing.grouped import grouped_matmuls
from meshwright.capture.tracing.intercept import Intercept
from meshwright.capture.tracing.kinds import check_class_questions, eager_kinds
from meshwright.capture.tracing.opaque import kept_whole
from meshwright.capture.tracing.questions import Questions
from meshwright.capture.tracing.refuse import check_model, refusal
from meshwright.capture.tracing.repeat import NotAlikeError, trace_alike_once
from meshwright.capture.tracing.shadow import shadow_of
from meshwright.capture.tracing.state import (
    Changes,
    Key,
    buffers_of,
    changes,
    check_random,
    restore,
    set_attributes,
    state_of,
    write_assigned_buffers,
)
from meshwright.capture.tracing.swallowed import noted_numbers, raised_again
from meshwright.capture.tracing.traps import eager_paths
from meshwright.errors import MeshwrightError, ModelError
from meshwright.models.batch import for_the_loss
from meshwright.models.form import entries_of, shaped
from meshwright.torch_compat import fake_mode, fake_tensor, without_reports


class _WithLoss(nn.Module):
    """The model followed by the user's loss; a model that returns its loss needs none.

    targets: the entries of the batch that are for the loss alone. form: of the batch (`models.form`). changes: what the
    forward changed in Python.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[..., Tensor] | None,
        targets: tuple[str, ...],
        form: str,
        questions: Questions,
    ) -> None:
        super().__init__()
        self.model, self.targets, self.form, self.questions = model, targets, form, questions
        # Not as a child: a loss's own tensors (weights of classes) are constants, not the model's buffers.
        self.loss: Callable[..., Tensor] | None = loss.__call__ if isinstance(loss, nn.Module) else loss
        self.given = (loss,)
        self.changes = Changes()

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        before, buffers = state_of(self.model, self.given[0]), buffers_of(self.model)
        with raised_again(), noted_numbers(), Intercept(self.questions):
            loss = self._scalar(shaped(self.form, batch))
            write_assigned_buffers(buffers)
        after = state_of(self.model, self.given[0])
        check_random(before, after)
        self.changes.update(changes(before, after))  # in place: export puts attributes back
        restore(self.model, before)
        return loss

    def _scalar(self, batch: dict[str, Any]) -> Tensor:
        output = self.model(**{name: entry for name, entry in batch.items() if name not in self.targets})
        if self.loss is not None:
            output = self.loss(output, *(batch[name] for name in self.targets or batch))
        if isinstance(output, tuple | list) and not hasattr(output, "loss"):
            output = _loss_of(output)
        found = output["loss"] if isinstance(output, Mapping) and "loss" in output else getattr(output, "loss", output)
        if not isinstance(found, Tensor) or found.dim() != 0:
            if self.loss is not None:
                raise ModelError(
                    f"the loss function returned {_describe(found)}", "a scalar", "take its mean or sum over the batch"
                )
            labels = "add `labels` to the batch, from which transformers makes a loss, or " if found is None else ""
            raise ModelError(
                f"the model returned {'an output without a loss' if labels else _describe(found)}",
                "a scalar loss, alone or in a tuple, or an output with a scalar `.loss` or `['loss']`",
                f"{labels}pass `loss=` (or return it third): a function of the output and what the model does not take",
            )
        return found


def _loss_of(output: Sequence[object]) -> object:
    """Of `(loss, logits)` the first; of `(logits, loss)` the only scalar."""
    scalars = [one for one in output if isinstance(one, Tensor) and one.dim() == 0]
    first = bool(scalars) and scalars[0] is output[0]
    return scalars[0] if first or len(scalars) == 1 else output


def _describe(output: object) -> str:
    if not isinstance(output, Tensor):
        return f"a {type(output).__name__}"
    return f"a tensor of shape ({', '.join(str(size) if isinstance(size, int) else 'batch' for size in output.shape)})"


@dataclass(frozen=True, slots=True)
class Exported:
    """model: the fakes that were exported, in the dtypes the step computes in.

    notes: how the graph was had. answers: of the user to questions about tensor values. changes: what the
    forward changed in Python. clocks: that it read. compiled: it was told that it is being exported, which it asked.
    """

    graph: ExportedProgram
    model: nn.Module
    notes: tuple[str, ...]
    answers: tuple[str, ...]
    changes: Changes
    clocks: tuple[str, ...] = ()
    compiled: bool = False


def export(
    model: nn.Module,
    batch: Mapping[str, Tensor],
    loss: Callable[..., Tensor] | None = None,
    form: str = "",
    *,
    precision: Precision | None = None,
    once: bool = True,
    vary: bool = True,
    allow: tuple[str, ...] = (),
    state: Mapping[Key, Any] | None = None,
    later_s: float = 0.0,
) -> Exported:
    """Export the training forward with a batch that may vary. The user's model is not touched.

    once: layers that are alike are traced once (see `repeat`). vary: whether the batch is a size of its own.
    allow: questions about tensor values that are answered (see `questions`). state: attributes to begin with. later_s:
    what the forward's clocks are ahead of time.
    """
    check_model(model)
    check_class_questions(model, loss)
    modules = modules_around(model, loss)
    compiled = False
    while True:
        asked = list[str]()
        try:
            with (
                without_reports(),
                forgotten_caches(model, loss),
                watched_clock(modules, later_s) as clocks,
                as_one_process(modules, compiled) as asked,
                refused_entropy(modules) as named,
                eager_kinds(modules),
            ):
                found = _export(model, batch, loss, form, precision, once, vary, allow, state or {})
            return replace(found, clocks=(*clocks, *named), compiled=compiled)
        except Exception as error:
            if asked and not isinstance(error, NotAlikeError):
                compiled = True  # eager's own path cannot be exported: the other one is all there is
                continue
            if isinstance(error, MeshwrightError | NotAlikeError):
                raise
            raise refusal(model, batch, error, loss) from error


def _export(
    model: nn.Module,
    batch: Mapping[str, Tensor],
    loss: Callable[..., Tensor] | None,
    form: str,
    precision: Precision | None,
    once: bool,
    vary: bool,
    allow: tuple[str, ...],
    state: Mapping[Key, Any],
) -> Exported:
    size = batch_size(batch)
    mode = fake_mode()

    def fake(tensor: Tensor) -> Tensor:
        # Export specialises sizes of 0 and 1, so a batch of 1 is captured at 2; dim 0 varies in any case.
        leading = (max(size, 2),) if vary and tensor.shape[:1] == (size,) else tensor.shape[:1]
        return fake_tensor((*leading, *tensor.shape[1:]), dtype_in(tensor, precision), mode)

    shadow, loss = shadow_of(model, loss, mode, precision)
    if once:
        trace_alike_once(shadow)
    set_attributes(shadow, state)
    questions = Questions(allow)
    wrapper = _WithLoss(shadow, loss, for_the_loss(model, entries_of(form) or batch), form, questions)
    inputs = {name: fake(tensor) for name, tensor in batch.items()}
    dims = {name: {0: Dim.AUTO} if vary and tensor.shape[:1] == (size,) else {} for name, tensor in batch.items()}
    with eager_paths(batch), grouped_matmuls(), ctc_losses(), kept_whole() as whole, warnings.catch_warnings():
        # What a forward leaves in lists is judged by `state`; `nn.LSTM` puts its own weights in one when it runs.
        warnings.filterwarnings("ignore", message=r"The tensor attributes? .* assigned during export")
        graph = torch.export.export(wrapper, (inputs,), dynamic_shapes=(dims,), strict=False)
    notes = (*(f"{name} is kept as one op" for name in whole), *questions.checks)
    return Exported(graph, shadow, notes, tuple(questions.answered), wrapper.changes)
