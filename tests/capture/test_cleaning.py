"""What models do that a Program does not: write in place, switch gradients off, branch on values, hold constants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from custom_functions import StraightThrough
from equality import assert_runs_like
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from meshwright.capture import Program, capture
from meshwright.capture.execute import run
from meshwright.errors import CaptureError, CaptureWarning


class Around(nn.Module):
    """A linear layer, the body under test, and a sum of squares."""

    def __init__(self, body: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(6, 6)
        self.body = body
        self.register_buffer("count", torch.zeros(2))
        self.register_buffer("table", torch.arange(6.0), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self, self.linear(x)).square().sum()


def captured(body: Callable[[Any, Tensor], Tensor]) -> Program:
    model, batch = Around(body), {"x": torch.randn(4, 6)}
    program = capture(model, batch)
    targets = [op.target for op in (*program.prologue.ops, *(op for _, op in program.ops()))]
    assert not any(target.split(".")[1].endswith("_") for target in targets if ":" not in target)
    assert_runs_like(program, model, batch)
    assert_runs_like(program.at_batch(3), model, {"x": torch.randn(3, 6)})
    return program


def write_through_slice(_: Any, x: Tensor) -> Tensor:
    y = x * 2
    y[:, 1:3] = x[:, 3:5] * 3
    return y


def write_through_several_views(_: Any, x: Tensor) -> Tensor:
    y = x * 2
    view = y.t()
    row = view[2:4].unsqueeze(0)
    row.mul_(5)
    view[0].add_(1)
    return y + view.t() + y.view(-1, 2, 3).flatten(1)


def write_to_a_part(_: Any, x: Tensor) -> Tensor:
    mask = torch.ones_like(x)
    left, right = mask.chunk(2, dim=1)
    right.add_(left)
    first, *_rest = right.unbind(1)
    first.mul_(5)
    return x * mask + torch.cat([left, right], 1)


def write_to_zeros(_: Any, x: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    out.copy_(x[:1])
    out.index_put_((torch.tensor([0, 2]),), x[:2])
    out.masked_fill_(x > 1, 0.5)
    out.scatter_(1, torch.zeros(x.shape[0], 1, dtype=torch.int64), 2.0)
    return out.div_(3) + torch.empty_like(x).fill_(2.0)


def write_with_promotion(_: Any, x: Tensor) -> Tensor:
    half = x.to(torch.bfloat16)
    half.add_(torch.ones(6) / 3)
    return half.float()


def write_permuted(_: Any, x: Tensor) -> Tensor:
    y = (x * 1).view(-1, 2, 3)
    y.permute(2, 0, 1)[0].zero_()
    return y.reshape(-1, 6)


@pytest.mark.parametrize(
    "body",
    [
        write_through_slice,
        write_through_several_views,
        write_to_a_part,
        write_to_zeros,
        write_with_promotion,
        write_permuted,
    ],
)
def test_writes_in_place_become_functional(body: Callable[[Any, Tensor], Tensor]) -> None:
    captured(body)


def test_writes_through_a_buffers_view_update_the_buffer() -> None:
    def body(self: Any, x: Tensor) -> Tensor:
        self.count[1:].add_(1)
        return x * self.count[1]

    program = captured(body)
    assert [buffer for graph in program.graphs for buffer, _ in graph.updates] == ["count"]


def test_a_write_to_a_parameter_is_refused_by_name() -> None:
    def body(self: Any, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.linear.bias.add_(1)
        return x

    with pytest.raises(CaptureError, match=r"writes to the parameter 'linear\.bias'"):
        captured(body)


def test_a_write_behind_autograds_back_is_refused() -> None:
    with pytest.raises(CaptureError, match="through detach"):
        captured(lambda _, x: x + x.detach().mul_(2))


def test_no_gradient_passes_a_no_grad_region() -> None:
    def body(_: Any, x: Tensor) -> Tensor:
        with torch.no_grad():
            scale = x.abs().mean() * 2
            with torch.enable_grad():
                scale = scale + 1
        return x * scale

    program = captured(body)
    values = {value.name: value for _, op in program.ops() for value in op.results}
    assert not values["mean"].grad


def test_buffers_that_never_change_are_read_by_the_prologue() -> None:
    def body(self: Any, x: Tensor) -> Tensor:
        for _ in range(20):
            x = torch.tanh(x * self.table.cos())
        return x

    assert captured(body).buffers[1].name == "table"


def branch_on_values(_: Any, x: Tensor) -> Tensor:
    if torch.rand([]) < -1.0:
        return x
    return x * 2


def test_torch_does_not_print_the_graph_it_gave_up(capfd: pytest.CaptureFixture[str]) -> None:
    captured(branch_on_values)
    assert capfd.readouterr().err == ""


def test_numbers_drawn_outside_torch_are_warned_of() -> None:
    def body(_: Any, x: Tensor) -> Tensor:
        return x * torch.tensor([[float(hash(row) < 2)] for row in range(int(x.shape[0]))])

    with pytest.warns(CaptureWarning, match="the same in every step"):
        capture(Around(body), {"x": torch.randn(4, 6)})


def test_small_constants_are_kept_as_numbers() -> None:
    def body(_: Any, x: Tensor) -> Tensor:
        return x * torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])

    assert any("is a constant" in note for note in captured(body).notes)


def test_an_unregistered_tensor_of_some_size_is_refused() -> None:
    model = Around(lambda self, x: x * self.mask[:6])
    model.mask = torch.ones(5000)
    with pytest.raises(CaptureError, match=r"(?s)constant tensor 'mask'.*register_buffer"):
        capture(model, {"x": torch.randn(4, 6)})


def test_a_backward_of_its_own_is_respected() -> None:
    program = captured(lambda _, x: StraightThrough.apply(x * 3))
    assert any(op.target == "custom_functions:StraightThrough.apply" for _, op in program.ops())
    assert "custom_functions:StraightThrough.apply is kept as one op" in program.notes


def test_a_backward_that_has_no_name_is_refused() -> None:
    class Hidden(StraightThrough):
        pass

    with pytest.raises(CaptureError, match=r"Hidden is a torch\.autograd\.Function defined inside a function"):
        captured(lambda _, x: Hidden.apply(x))


def test_a_number_that_only_the_data_knows_is_refused() -> None:
    with pytest.raises(CaptureError, match=r"depends on the data|makes a Python number"):
        captured(lambda _, x: x * x.sum().item())


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_recurrent_layers_are_one_op(kind: Any) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer = kind(6, 6, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x)[0].square().sum()

    model, batch = Model(), {"x": torch.randn(4, 5, 6)}
    program = capture(model, batch)
    assert_runs_like(program, model, batch)
    assert program.couples_samples == ()
    assert sum("input" in op.target for _, op in program.ops()) == 1


def test_what_the_model_does_not_take_is_for_the_loss() -> None:
    model, loss = nn.Linear(4, 3), nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 0.5]))
    batch = {"input": torch.randn(5, 4), "target": torch.randint(0, 3, (5,))}
    program = capture(model, tuple(batch.values()), loss)
    assert [value.name for value in program.inputs] == ["input", "target"]
    assert program.fingerprint() == capture(model, batch, loss).fingerprint()
    found, _ = run(program, dict(model.named_parameters()), batch, torch.device("cpu"))
    assert torch.equal(found, loss(model(batch["input"]), batch["target"]))


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.first, self.second, self.reentrant = nn.Linear(4, 4), nn.Linear(4, 4), reentrant

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.second, self.first(x), use_reentrant=self.reentrant).square().sum()


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_layers_keep_their_gradients(reentrant: bool) -> None:
    model, plain, batch = Checkpointed(reentrant), Checkpointed(reentrant=False), {"x": torch.randn(3, 4)}
    plain.load_state_dict(model.state_dict())
    assert_runs_like(capture(model, batch), plain, batch)


def test_cat_passes_over_an_empty_cache() -> None:
    def joined(_: Any, x: Tensor) -> Tensor:
        return torch.cat([torch.tensor([]), x.unsqueeze(1)], dim=-2)

    program = captured(joined)
    assert [len(op.args[0]) for _, op in program.ops() if op.target == "aten.cat.default"] == [1]


def test_slices_of_the_whole_are_none() -> None:
    """PyTorch makes no slice for the `:` of an index, and no gradient of one."""
    program = captured(lambda self, y: y[:, :6] * y[:][:, 0:] + y[:, :-1].sum() + y[:, ::2].sum())
    slices = [op for _, op in program.ops() if op.target == "aten.slice.Tensor"]
    assert [op.results[0].type.shape[1] for op in slices] == [5, 3]
