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


def test_a_lone_tensor_is_a_batch_of_one() -> None:
    program = capture(nn.Linear(13, 7), torch.randn(4, 13), lambda output, given: output.square().mean())
    assert program.batch == 4


def test_an_empty_batch() -> None:
    with pytest.raises(ModelError, match="the batch is empty"):
        capture(nn.Linear(4, 1), {})


def test_an_output_that_is_no_loss() -> None:
    with pytest.raises(ModelError, match=r"(?s)shape \(batch, 1\).*pass `loss=`"):
        capture(nn.Linear(4, 1), (torch.ones(2, 4),))


def test_an_output_without_a_loss_asks_for_labels() -> None:
    """As models of transformers give it where the batch has none."""

    class Unlabelled(nn.Linear):
        def forward(self, x: Tensor) -> dict[str, Tensor | None]:
            return {"loss": None, "logits": super().forward(x)}

    with pytest.raises(
        ModelError, match=r"(?s)returned an output without a loss.*add `labels` to the batch, .* or pass"
    ):
        capture(Unlabelled(4, 1), (torch.ones(2, 4),))


def test_numbers_and_sizes_that_depend_on_the_data() -> None:
    with pytest.raises(CaptureError, match=r"(?s)Branching makes a Python number.*test_errors.py:\d+ `size = int"):
        capture(Branching(), (torch.ones(2, 3),))
    with pytest.raises(CaptureError, match=r"(?s)aten.index.Tensor makes a tensor whose size .*test_errors.py:\d+ `"):
        capture(Regions("selected"), (torch.ones(2, 3),))


class Regions(nn.Module):
    def __init__(self, region: str) -> None:
        super().__init__()
        self.weight, self.region, self.table = nn.Parameter(torch.ones(3)), region, torch.ones(3, device="meta")

    def forward(self, x: Tensor) -> Tensor:
        if self.region == "cond":
            return torch.cond(x.sum() > 0, lambda w: w * 2, lambda w: w + 1, (self.weight,)).sum()
        if self.region == "selected":
            return (self.weight * x)[x > 0].sum()
        if self.region == "table":
            return (self.weight * self.table).sum()
        with torch.autocast("cpu", torch.bfloat16, enabled=self.region == "autocast"):
            return (self.weight * x).sum()


@pytest.mark.parametrize(
    ("region", "said"),
    [("autocast", "torch.autocast in the model"), ("cond", "cond in the model, at"), ("table", "a tensor 'table'")],
)
def test_regions_and_tensors_that_a_program_cannot_hold(region: str, said: str) -> None:
    with pytest.raises(CaptureError, match=said):
        capture(Regions(region), (torch.ones(2, 3),))


def test_an_autocast_that_is_off_is_nothing() -> None:
    program = capture(Regions("off"), (torch.ones(2, 3),))
    assert [op.target for op in program.graphs[0].ops] == ["aten.mul.Tensor", "aten.sum.default"]


def test_a_loss_without_a_gradient() -> None:
    model = nn.Linear(4, 1)
    with pytest.raises(CaptureError, match=r"the loss, int64\[\], passes no gradient"):
        capture(model, (torch.ones(2, 4),), lambda y, x: y.argmax())
    with pytest.raises(CaptureError, match="what is frozen"):
        capture(model.requires_grad_(False), (torch.ones(2, 4),), lambda y, x: y.sum())


def test_a_loss_that_is_not_called_as_written() -> None:
    with pytest.raises(ModelError, match=r"does not take \(output, input\)"):
        capture(nn.Linear(4, 1), (torch.ones(2, 4),), lambda y: y.sum())
    with pytest.raises(ModelError, match=r"the loss function returned a tensor of shape \(batch, 1\)"):
        capture(nn.Linear(4, 1), (torch.ones(2, 4),), lambda y, x: y)


def test_parameters_without_a_shape() -> None:
    with pytest.raises(ModelError, match="weight of LazyLinear has no shape yet"):
        capture(nn.LazyLinear(4), (torch.ones(2, 4),), lambda y, x: y.sum())


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
    with pytest.raises(ModelError, match="a batch of tokens, targets, mask for GPT"):
        capture(model, batch | {"mask": torch.ones(4, 12)})


def test_instance_norm_with_running_statistics() -> None:
    """They would stay as they are: the op's schema does not say that it writes them."""
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.InstanceNorm2d(4, track_running_stats=True))
    with pytest.raises(CaptureError, match="InstanceNorm with running statistics in 1"):
        capture(model, torch.ones(2, 3, 4, 4), lambda y, x: y.square().mean())


def test_a_transform_of_torch_func() -> None:
    with pytest.raises(CaptureError, match=r"without `torch\.func`"):
        capture(nn.Linear(4, 4), torch.ones(2, 4), lambda y, x: torch.func.vmap(lambda row: row * row.max())(y).sum())
