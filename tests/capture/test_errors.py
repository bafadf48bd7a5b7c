"""One message for each thing that cannot be captured: what was given, what was expected, what to do."""

from __future__ import annotations

import pytest
import torch
from small_families import small_family
from torch import Tensor, nn

from meshwright.capture import capture
from meshwright.errors import CaptureError, ModelError


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        size = int(x.sum().item())
        return (self.weight * x).sum() * torch.ones(size).sum()


def test_a_batch_of_the_wrong_width() -> None:
    model = nn.Linear(4, 1)
    with pytest.raises(CaptureError, match=r"Linear could not be captured with the batch input \(2, 5\)"):
        capture(model, (torch.ones(2, 5),), lambda y, x: y.sum())


def test_a_batch_with_too_many_tensors() -> None:
    with pytest.raises(ModelError, match="a batch of 3 tensors for Linear"):
        capture(nn.Linear(4, 1), (torch.ones(2, 4),) * 3)


def test_a_batch_without_a_batch_dim() -> None:
    with pytest.raises(ModelError, match="leading batch dim"):
        capture(nn.Linear(4, 1), (torch.tensor(1.0),))


def test_a_loss_of_the_data_alone() -> None:
    with pytest.raises(CaptureError, match="depends on no parameter"):
        capture(nn.Linear(4, 1), (torch.ones(2, 4),), lambda y, x: (x * x).sum())


def test_an_empty_batch() -> None:
    with pytest.raises(ModelError, match="the batch is empty"):
        capture(nn.Linear(4, 1), {})


def test_an_output_that_is_no_loss() -> None:
    with pytest.raises(ModelError, match=r"(?s)shape \(batch, 1\).*pass `loss=`"):
        capture(nn.Linear(4, 1), (torch.ones(2, 4),))


def test_sizes_that_depend_on_the_data() -> None:
    with pytest.raises(CaptureError, match="Branching could not be captured"):
        capture(Branching(), (torch.ones(2, 3),))


def test_precisions_that_cannot_be() -> None:
    model = nn.Linear(4, 1).to(torch.bfloat16)
    with pytest.raises(ModelError, match=r"(?s)fp32 of a model whose parameters are bfloat16.*precision='bf16'"):
        capture(model, (torch.ones(2, 4),), lambda y, x: y.sum(), precision="fp32")
    with pytest.raises(ModelError, match="precision 'fp8'"):
        capture(model, (torch.ones(2, 4),), lambda y, x: y.sum(), precision="fp8")  # type: ignore[arg-type]


def test_a_batch_that_cannot_vary_says_so() -> None:
    model = nn.Linear(4, 1)
    for size in (3, 1):
        program = capture(model, (torch.ones(size, 4),), lambda y, x: y.sum() / float(x.shape[0]))
        assert "the batch cannot vary: export fixed it" in program.notes
        assert program.inputs[0].type.shape == (size, 4)
        assert program.at_batch(size) == program
        with pytest.raises(CaptureError, match=f"(?s)a batch of 6 of a Program whose batch export fixed at {size}"):
            program.at_batch(6)


def test_an_unknown_argument() -> None:
    model, batch = small_family("gpt")
    with pytest.raises(CaptureError, match="GPT could not be captured"):
        capture(model, batch | {"mask": torch.ones(4, 12)})
