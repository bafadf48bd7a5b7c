"""Random numbers by counter: good numbers, the same on every layout, and none left to a generator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import GlooPool
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from meshwright.capture import capture, counter
from meshwright.capture.counter import RandomState, dropout, keys, random_state, uniform
from meshwright.capture.execute import run
from meshwright.capture.program import Program
from meshwright.cluster import load_cluster
from meshwright.errors import RuleError
from meshwright.models.gpt import GPT
from meshwright.plan import Plan
from meshwright.planner.plan import make_plan
from meshwright.rules import resolve_rule

CPU = torch.device("cpu")


def key(**state: Any) -> Tensor:
    with random_state(RandomState(**state)):
        return keys(1, CPU)[0]


def words(count: int, **state: Any) -> Tensor:
    """Bits of elements 0, 1, ... in rows of 64, as numbers from 0 up to 1."""
    return uniform(key(**state), [count // 64, 64], torch.float64)


def test_numbers_are_uniform_and_uncorrelated() -> None:
    drawn = words(1 << 18)
    counts = torch.histc(drawn.float(), 256, 0, 1)
    chi = ((counts - 1024) ** 2 / 1024).sum()
    assert 150 < chi < 380  # 255 degrees of freedom: six deviations either way
    centred = drawn - 0.5
    for other in (centred.roll(1, 1), centred.roll(1, 0), words(1 << 18, step=1) - 0.5, words(1 << 18, seed=1) - 0.5):
        assert abs((centred * other).mean() * 12) < 6 / 512


def test_every_bit_is_even_and_follows_every_counter_bit() -> None:
    """Flip one bit of the column, of the row: each of the 32 random bits flips half of the time."""
    whole = counter.bits(key(), [256, 256], None, [256, 256])
    for dim in (0, 1):
        for bit in range(8):
            moved = whole.index_select(dim, torch.arange(256) ^ (1 << bit))
            flips = torch.stack([((whole ^ moved) >> place) & 1 for place in range(32)]).double().mean((1, 2))
            assert (flips - 0.5).abs().max() < 6 / 512, (dim, bit)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 7), min_size=1, max_size=4), st.data())
def test_a_piece_has_what_the_whole_has_there(shape: list[int], data: st.DataObject) -> None:
    x = torch.rand(shape)
    start = [data.draw(st.integers(0, size - 1)) for size in shape]
    stop = [data.draw(st.integers(first + 1, size)) for first, size in zip(start, shape, strict=True)]
    where = tuple(slice(a, b) for a, b in zip(start, stop, strict=True))
    whole, piece = dropout(x, key(), 0.4), dropout(x[where], key(), 0.4, torch.tensor(start), shape)
    assert torch.equal(whole[where], piece)


def test_a_micro_batch_has_what_the_batch_has_there() -> None:
    x = torch.rand(6, 5, 4)
    whole = dropout(x, key(rows=6), 0.4)
    assert torch.equal(whole[2:4], dropout(x[2:4], key(first_row=2, rows=2), 0.4))
    flat = dropout(x.view(30, 4), key(rows=6), 0.4)
    assert torch.equal(flat[10:20], dropout(x[2:4].view(10, 4), key(first_row=2, rows=2), 0.4))


def test_rows_are_counted_by_more_dims_where_columns_would_not_fit() -> None:
    assert counter.leading_dims((4, 8192, 8192)) == 1
    assert counter.leading_dims((4, 32, 65536, 65536)) == 3
    assert counter.leading_dims(()) == 0


def test_dropout_keeps_the_mean_and_its_gradient_the_mask() -> None:
    x = torch.ones(64, 512, requires_grad=True)
    y = dropout(x, key(), 0.25)
    assert y.unique().tolist() == pytest.approx([0, 4 / 3])
    assert y.mean().item() == pytest.approx(1, abs=0.02)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(gradient, y)
    assert torch.equal(dropout(x, key(dropout=False), 0.25), x)
    assert not dropout(x, key(), 1.0).any()


def test_the_blocked_kernel_equals_the_plain_ops() -> None:
    for shape in ((3, 40000), (70000,), (2, 3, 5), ()):
        x = torch.rand(shape)
        assert torch.equal(dropout(x, key(), 0.3), counter.plain_dropout(x, key(), 0.3))


def test_compilers_are_given_plain_ops() -> None:
    def step(x: Tensor, at: Tensor) -> Tensor:
        return dropout(x, at, 0.3)

    traced = make_fx(step, decomposition_table=counter.DECOMPOSITIONS)(torch.rand(4, 8), key())
    targets = {str(node.target) for node in traced.graph.nodes if node.op == "call_function"}
    assert targets
    assert all(target.startswith("aten.") for target in targets)


class Drawing(nn.Module):
    """A weight, so that there is something to train, and one random function."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return (self.function(x * self.weight) ** 2).mean()


def drawn_by(function: Callable[[Tensor], Tensor], *shape: int, **state: Any) -> tuple[Program, Tensor]:
    model, x = Drawing(function), torch.ones(shape)
    program = capture(model, {"x": x})
    with random_state(RandomState(**state)):
        return program, run(program, dict(model.named_parameters()), {"x": x}, CPU)[0]


def drop_path(x: Tensor) -> Tensor:
    keep = x.new_empty((x.shape[0], 1, 1, 1)).bernoulli_(0.75)
    return x * keep.div_(0.75)


def old_drop_path(x: Tensor) -> Tensor:
    return x / 0.75 * (0.75 + torch.rand((x.shape[0], 1, 1, 1))).floor()


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: F.dropout(x, 0.25), 4 / 3),
        pytest.param(lambda x: F.dropout2d(x, 0.25), 4 / 3, marks=pytest.mark.full),
        pytest.param(lambda x: F.dropout3d(x[..., None], 0.25), 4 / 3, marks=pytest.mark.full),
        (drop_path, 4 / 3),
        pytest.param(old_drop_path, 4 / 3, marks=pytest.mark.full),
        (lambda x: x + torch.randn_like(x), 2.0),
        pytest.param(lambda x: x * torch.rand_like(x), 1 / 3, marks=pytest.mark.full),
        pytest.param(lambda x: x * torch.empty_like(x).uniform_(1, 2), 7 / 3, marks=pytest.mark.full),
        pytest.param(lambda x: x * torch.zeros_like(x).normal_(1, 2), 5.0, marks=pytest.mark.full),
        (lambda x: x * torch.bernoulli(torch.full_like(x, 0.75)), 0.75),
        (lambda x: F.alpha_dropout(x * torch.randn_like(x), 0.25, training=True), 1.0),
        (lambda x: F.dropout(x, 0.25, inplace=True), 4 / 3),
    ],
)
def test_random_functions_draw_by_counter(function: Callable[[Tensor], Tensor], expected: float) -> None:
    """Nothing is left to a generator, seeds and steps differ, and the distribution is the function's own."""
    program, found = drawn_by(function, 128, 64, 4, 4)
    assert program.prologue.ops
    for graph in program.graphs:
        for op in graph.ops:
            assert not resolve_rule(op).is_fallback, op
    assert found.item() == pytest.approx(expected, rel=0.15)
    assert found == drawn_by(function, 128, 64, 4, 4)[1]
    assert found != drawn_by(function, 128, 64, 4, 4, step=1)[1]
    assert found != drawn_by(function, 128, 64, 4, 4, seed=1)[1]


def test_random_functions_without_a_counter_are_refused_by_name() -> None:
    program, _ = drawn_by(lambda x: x + torch.randint(0, 5, (4,)), 4, 4)
    with pytest.raises(RuleError, match=r"the random op .*aten\.randint"):
        [resolve_rule(op) for graph in (program.prologue, *program.graphs) for op in graph.ops]


@pytest.mark.parametrize(
    "kind",
    ["causal", "grouped", *(pytest.param(kind, marks=pytest.mark.full) for kind in ("plain", "truth", "numbers"))],
)
def test_attention_with_dropout_is_attention_around_a_dropout(kind: str) -> None:
    """With next to nothing dropped it equals the fused op; with more, elements go missing."""

    class Attend(nn.Module):
        def __init__(self, p: float) -> None:
            super().__init__()
            self.p, self.weight = p, nn.Parameter(torch.ones(1))

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            k = x[:, :2] if kind == "grouped" else x
            masks = {"truth": mask > 0, "numbers": mask}
            options: dict[str, Any] = {"is_causal": kind == "causal", "enable_gqa": kind == "grouped"}
            y = F.scaled_dot_product_attention(x * self.weight, k, k * 2, masks.get(kind), self.p, **options)
            return (y**2).mean()

    torch.manual_seed(0)
    batch = {"x": torch.randn(3, 4, 6, 8), "mask": torch.randn(3, 1, 6, 6).index_fill(3, torch.tensor([0]), 1.0)}
    losses = []
    for p in (0.0, 1e-12, 0.5):
        model = Attend(p)
        program = capture(model, batch)
        losses.append(run(program, dict(model.named_parameters()), batch, CPU)[0].item())
        assert any("attention" in note for note in program.notes) == (p > 0)
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    assert losses[2] != pytest.approx(losses[0], rel=1e-3)


def test_layers_that_drop_are_still_alike() -> None:
    program = capture(*dropping())
    assert len(program.segments) > len(program.graphs)
    assert sum(value.name.startswith("random_key") for value in program.prologue.ops[0].results) == 6


def dropping() -> tuple[nn.Module, dict[str, Tensor]]:
    torch.manual_seed(0)
    batch = {"tokens": torch.randint(0, 96, (6, 12)), "targets": torch.randint(0, 96, (6, 12))}
    return GPT(3, 48, 6, 96, 96, 12, tied=True, dropout=0.2), batch


def train(rank: int, plan_json: bytes) -> dict[str, Any]:
    from meshwright.runtime.trainer import parallelize

    model, batch = dropping()
    trainer = parallelize(model, Plan.from_json(plan_json))
    optimizer = torch.optim.SGD(trainer.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        losses.append(trainer.step(batch, global_batch=True).item())
        gradients = {name: parameter.grad.full_tensor() for name, parameter in trainer.named_parameters()}
        optimizer.step()
        optimizer.zero_grad()
    return {"losses": losses, "gradients": gradients}


@pytest.mark.parametrize(
    "pins",
    [
        ("dp=2", "zero=3"),
        ("tp=2",),
        *(pytest.param(pins, marks=pytest.mark.full) for pins in (("dp=2",), ("split=matmul",))),
    ],
    ids=str,
)
def test_every_plan_drops_what_one_process_drops(ranks: Callable[[int], GlooPool], pins: tuple[str, ...]) -> None:
    program = capture(*dropping())
    (true,) = ranks(1).run(train, make_plan(program, load_cluster("local:1"), optimizer="sgd").to_json())
    plan = make_plan(program, load_cluster("local:2"), optimizer="sgd", pins=pins)
    both = ranks(2).run(train, plan.to_json())
    for found in both:  # of several stages, each rank has the gradients of its own
        assert found["losses"] == pytest.approx(true["losses"], rel=1e-5)
        for name, gradient in found["gradients"].items():
            assert torch.allclose(gradient, true["gradients"][name], rtol=1e-4, atol=1e-6), name
    assert {name for found in both for name in found["gradients"]} == set(true["gradients"])
