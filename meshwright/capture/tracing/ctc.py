"""The CTC loss as an operator of our own, whose shapes follow from those of the batch.

torch's own makes a table as wide as the longest target of the batch, which only the data tells. Ours is as wide as
targets are padded; the kernels are torch's. The loss of transformers' speech models, which puts all targets in one
row, is recorded with padded targets.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from meshwright.capture.tracing.traps import replaced
from meshwright.errors import CaptureError

LOSSES = "transformers.loss.loss_utils"


@torch.library.custom_op("meshwright::ctc", mutates_args=())
def ctc(
    log_probs: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor, blank: int, zero_infinity: bool
) -> tuple[Tensor, Tensor]:
    """log_probs [t, n, classes], targets [n, s]: the loss of each sample, [n], and the table for backward."""
    width = 2 * targets.shape[1] + 1
    if not targets.shape[0]:  # the kernel refuses a rank without samples
        return log_probs.new_empty(0), log_probs.new_empty(0, log_probs.shape[0], width)
    loss, table = torch.ops.aten._ctc_loss.Tensor(
        log_probs, targets, input_lengths, target_lengths, blank, zero_infinity
    )
    steps, places = (torch.arange(count, device=table.device) for count in (table.shape[1], width))
    # The kernel leaves memory as it is where a sample has no more steps or targets.
    filled = (steps < input_lengths.to(table.device)[:, None])[:, :, None]
    filled = filled & (places < 2 * target_lengths.to(table.device)[:, None] + 1)[:, None, :]
    whole = torch.nn.functional.pad(table, (0, width - table.shape[2]))
    return loss, torch.where(filled, whole, torch.zeros_like(whole))


@torch.library.custom_op("meshwright::ctc_backward", mutates_args=())
def ctc_backward(
    gradient: Tensor,
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    loss: Tensor,
    table: Tensor,
    blank: int,
    zero_infinity: bool,
) -> Tensor:
    if not targets.shape[0]:
        return torch.empty_like(log_probs, memory_format=torch.contiguous_format)
    width = 2 * int(target_lengths.max()) + 1
    found: Tensor = torch.ops.aten._ctc_loss_backward.Tensor(
        gradient.contiguous(),
        log_probs,
        targets,
        input_lengths,
        target_lengths,
        loss,
        table[:, :, :width].contiguous(),
        blank,
        zero_infinity,
    )
    return found


@ctc.register_fake
def _(
    log_probs: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor, blank: int, zero_infinity: bool
) -> tuple[Tensor, Tensor]:
    steps, samples = log_probs.shape[:2]
    return log_probs.new_empty(samples), log_probs.new_empty(samples, steps, 2 * targets.shape[1] + 1)


@ctc_backward.register_fake
def _(gradient: Tensor, log_probs: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(log_probs, memory_format=torch.contiguous_format)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*inputs[:4], *output)
    ctx.literals = inputs[4:]


def _backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    return ctc_backward(gradient, *ctx.saved_tensors, *ctx.literals), None, None, None, None, None


ctc.register_autograd(_backward, setup_context=_save)


def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """`F.ctc_loss` of padded targets, lengths as tensors; refuses targets whose shapes depend on the data."""
    if not isinstance(input_lengths, Tensor) or not isinstance(target_lengths, Tensor):
        raise CaptureError(
            "ctc_loss with lengths that are Python numbers",
            "lengths of the samples as tensors, which follow the batch",
            "give input_lengths and target_lengths as tensors with a number for each sample",
        )
    if targets.dim() != 2 or log_probs.dim() != 3:
        raise CaptureError(
            f"ctc_loss of targets of shape {tuple(targets.shape)} and log_probs of {tuple(log_probs.shape)}",
            "targets [samples, longest] and log_probs [steps, samples, classes]",
            "pad targets to one length; those that target_lengths leaves out do not count",
        )
    loss: Tensor
    loss, _ = ctc(log_probs, targets, input_lengths, target_lengths, blank, zero_infinity)
    if zero_infinity:
        loss = torch.where(loss == torch.inf, torch.zeros_like(loss), loss)
    if reduction == "mean":
        return (loss / target_lengths.clamp_min(1).to(loss.dtype)).mean()
    return loss.sum() if reduction == "sum" else loss


def loss_for_ctc(
    logits: Tensor,
    labels: Tensor,
    logit_lengths: Tensor,
    blank_token_id: int,
    reduction: str = "mean",
    zero_infinity: bool = False,
    ignore_index: int = -100,
    **rest: Any,
) -> Tensor:
    """What transformers' `ForCTCLoss` computes: each sample's labels that count come first, in their order."""
    counts = (labels != ignore_index) & (labels != blank_token_id)
    _, order = torch.sort((~counts).to(torch.int32), dim=-1, stable=True)
    targets = torch.where(counts, labels, torch.zeros_like(labels)).gather(-1, order)
    log_probs = F.log_softmax(logits, dim=-1, dtype=torch.float32).transpose(0, 1)
    return ctc_loss(log_probs, targets, logit_lengths, counts.sum(-1), blank_token_id, reduction, zero_infinity)


@contextmanager
def ctc_losses() -> Iterator[None]:
    """While capturing: CTC losses are recorded as ours."""
    known: dict[str, Any] = sys.modules[LOSSES].LOSS_MAPPING if LOSSES in sys.modules else {}
    before = known.get("ForCTC")
    known |= {"ForCTC": loss_for_ctc} if before else {}
    try:
        with replaced(F, "ctc_loss", ctc_loss):
            yield
    finally:
        known |= {"ForCTC": before} if before else {}
