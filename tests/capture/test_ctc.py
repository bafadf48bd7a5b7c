"""The CTC loss has static shapes once it is captured, and computes what torch's does."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import meshwright as mw
from meshwright.capture.tracing.ctc import ctc_loss, loss_for_ctc
from meshwright.errors import CaptureError

LENGTHS = torch.tensor([2, 4, 1, 3])


def logits() -> Tensor:
    torch.manual_seed(0)
    return torch.randn(9, 4, 6, requires_grad=True)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("zero_infinity", [False, True])
def test_it_computes_what_torch_does(reduction: str, zero_infinity: bool) -> None:
    """One sample has more targets than steps: its loss is infinite."""
    targets, steps = torch.randint(1, 6, (4, 5)), torch.tensor([9, 9 if not zero_infinity else 2, 9, 7])
    found = []
    for loss in (F.ctc_loss, ctc_loss):
        given = logits()
        result = loss(given.log_softmax(-1), targets, steps, LENGTHS, 0, reduction, zero_infinity)
        result.sum().backward()
        assert given.grad is not None
        found.append((result.detach(), given.grad))
    torch.testing.assert_close(found[1], found[0])


def test_labels_that_do_not_count_are_left_out_as_transformers_does() -> None:
    theirs = pytest.importorskip("transformers.loss.loss_ctc").ForCTCLoss
    labels = torch.tensor([[3, -100, 4, 2], [-100, -100, 1, -100], [5, 5, 0, 1], [2, 3, 4, 5]])
    given = torch.randn(4, 9, 6)
    arguments = (given, labels, torch.tensor([9, 8, 9, 7]), 0)
    torch.testing.assert_close(loss_for_ctc(*arguments), theirs(*arguments))


class Speech(nn.Module):
    def __init__(self, padded: bool = True) -> None:
        super().__init__()
        self.padded, self.last = padded, nn.Linear(8, 6)

    def forward(self, sound: Tensor, text: Tensor, lengths: Tensor) -> Tensor:
        log_probs = self.last(sound).log_softmax(-1).transpose(0, 1)
        steps = torch.full((sound.shape[0],), 9)
        return F.ctc_loss(log_probs, text if self.padded else text.flatten(), steps, lengths)


def test_a_captured_model_trains_as_eager() -> None:
    torch.manual_seed(0)
    model, batch = Speech(), (torch.randn(4, 9, 8), torch.randint(1, 6, (4, 4)), LENGTHS)
    loss = model(*batch)
    loss.backward()
    true = model.last.weight.grad
    model.zero_grad()
    trainer = mw.parallelize(model, mw.plan(model, batch, cluster="local:1"))
    torch.testing.assert_close(trainer.step(batch), loss.detach())
    torch.testing.assert_close(model.last.weight.grad.to_local(), true)  # type: ignore[union-attr]


def test_targets_in_one_row_are_refused_by_name() -> None:
    batch = (torch.randn(4, 9, 8), torch.randint(1, 6, (4, 4)), LENGTHS)
    with pytest.raises(CaptureError, match="pad targets to one length"):
        mw.plan(Speech(padded=False), batch, cluster="local:1")
