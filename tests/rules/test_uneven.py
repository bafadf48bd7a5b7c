"""Sizes that an axis does not divide: pieces as `torch.chunk` cuts them, the last ones smaller or empty."""

from __future__ import annotations

from itertools import product

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from rule_cases import FAMILIES, cases, tolerance
from rule_operands import f, ints
from torch import Tensor, nn

from meshwright.capture import capture
from meshwright.capture.execute import run_graph
from meshwright.cluster import logical_mesh
from meshwright.errors import RuleError
from meshwright.generate.shard import shard
from meshwright.layout import Layout
from meshwright.layout.threads import simulate
from meshwright.plan import Choice
from meshwright.price.flow import flow
from meshwright.rules import strategies, strategy
from meshwright.rules.prove import Case, case
from meshwright.rules.strategies import prove

QUICK = ("matmul", "attention", "norms", "embedding", "loss", "random")
SDPA = "aten.scaled_dot_product_attention.default"
LENGTHS = st.integers(1, 7)


def texts(given: Case, **axes: int) -> set[str]:
    return {found.text for found in strategies(given.op, given.values(), logical_mesh(axes), uneven=True)}


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.parametrize(
    ("family", "mesh"),
    [
        pytest.param(family, mesh, marks=[] if family in QUICK and len(mesh) == 1 else pytest.mark.full)
        for family, mesh in product(FAMILIES, ({"x": 5}, {"x": 2, "y": 5}))
    ],
)
def test_every_uneven_strategy_equals_the_unsharded_op(family: str, mesh: dict[str, int]) -> None:
    """12, 6 and 4 over 5 ranks: pieces of 3, 3, 3, 3, 0 and 2, 2, 2, 0, 0 and 1, 1, 1, 1, 0."""
    for example in cases(family):
        prove(example, logical_mesh(mesh), tolerance=tolerance(example), uneven=True)


@settings(max_examples=15, deadline=None)
@given(LENGTHS, LENGTHS, LENGTHS, st.sampled_from([2, 3, 4]))
def test_linear_at_any_size(rows: int, inputs: int, outputs: int, ways: int) -> None:
    example = case("aten.linear.default", f(rows, inputs), f(outputs, inputs), f(outputs))
    assert prove(example, logical_mesh({"x": ways}), uneven=True) == 4


@settings(max_examples=10, deadline=None)
@given(LENGTHS, LENGTHS, st.booleans(), st.sampled_from([2, 3]))
def test_attention_at_any_batch_and_heads(batch: int, heads: int, causal: bool, ways: int) -> None:
    q = f(batch, heads, 4, 3)
    example = case(SDPA, q, f(batch, heads, 4, 3), f(batch, heads, 4, 3), None, 0.0, causal)
    assert prove(example, logical_mesh({"x": ways}), uneven=True) >= 1 + fills(batch, ways) + fills(heads, ways)


def fills(size: int, ways: int) -> bool:
    """Whether every rank has a piece."""
    return len(torch.zeros(size).chunk(ways)) == ways


def test_no_rank_is_left_with_nothing_where_a_kernel_divides_by_sizes() -> None:
    """Six heads over five ranks are 2, 2, 2, 0, 0; over four 2, 2, 2, 0; over three they are even."""
    heads = f(2, 6, 4, 3)
    given = case(SDPA, heads, f(2, 6, 4, 3), f(2, 6, 4, 3), None, 0.0, True)
    assert {ways: "h" in texts(given, x=ways) for ways in (3, 4, 5)} == {3: True, 4: False, 5: False}
    assert "h" in texts(case(SDPA, *(f(2, 7, 4, 3) for _ in range(3)), None, 0.0, True), x=4), "2, 2, 2, 1"
    assert "d0" in texts(case("aten.neg.default", f(6)), x=5), "others may be left with nothing"
    rows = case("aten._weight_norm.default", f(12, 6), f(12, 1))
    assert {ways: "d0" in texts(rows, x=ways) for ways in (4, 5, 7, 8)} == {4: True, 5: False, 7: False, 8: False}
    assert "d0" in texts(case("aten._weight_norm.default", f(7, 6), f(7, 1)), x=4), "2, 2, 2, 1"
    groups = case("aten.group_norm.default", f(12, 24, 3), 12, f(24), f(24), 1e-5)
    assert {ways: "g" in texts(groups, x=ways) for ways in (4, 5, 24)} == {4: True, 5: False, 24: False}


@settings(max_examples=10, deadline=None)
@given(LENGTHS, LENGTHS, st.sampled_from([2, 3, 4]))
def test_embedding_and_loss_at_any_vocabulary(rows: int, vocabulary: int, ways: int) -> None:
    mesh = logical_mesh({"x": ways})
    assert prove(case("aten.embedding.default", f(vocabulary, 3), ints(vocabulary, rows)), mesh, uneven=True) >= 3
    example = case("aten.cross_entropy_loss.default", f(rows, vocabulary), ints(vocabulary, rows))
    assert prove(example, mesh, uneven=True) >= 2


def test_uneven_strategies_come_only_when_asked_for() -> None:
    given = case("aten.mm.default", f(4, 6), f(6, 8))
    even = {found.text for found in strategies(given.op, given.values(), logical_mesh({"x": 3}))}
    assert even == {"-", "k"}
    assert texts(given, x=3) == {"-", "m", "k", "n"}


def test_what_would_not_align_is_left_out() -> None:
    merged = case("aten.view.default", f(4, 5, 6), (4, 30))
    assert texts(merged, x=3) == {"-", "d0", "+"}  # 5 is the outer part of 30, whose thirds are no multiples of 6
    grouped = case(SDPA, f(1, 10, 4, 2), f(1, 5, 4, 2), f(1, 5, 4, 2), None, 0.0, True, enable_gqa=True)
    assert "h" not in texts(grouped, x=2)
    convolved = case("aten.conv2d.default", f(3, 4, 5, 5), f(4, 4, 3, 3))
    assert texts(convolved, x=2) == {"-", "i", "o"}
    one_factor = case("aten.neg.default", f(5))
    assert "d0,d0" not in texts(one_factor, x=2, y=2)


def test_each_rank_has_sizes_of_its_own() -> None:
    given, mesh = case("aten.view.default", f(5, 6), (5, 2, 3)), logical_mesh({"x": 3})
    sizes = [strategy(given.op, given.values(), mesh, "d0", at=(rank,)).lowering.args[1] for rank in range(3)]
    assert sizes == [(2, 2, 3), (2, 2, 3), (1, 2, 3)]
    assert strategy(given.op, given.values(), mesh, "d0").lowering.args[1] == (2, 2, 3), "the first rank's are largest"
    with pytest.raises(RuleError, match="no strategy 'd7'"):
        strategy(given.op, given.values(), mesh, "d7")


def test_pieces_are_those_of_torch_chunk() -> None:
    given, mesh = case("aten.neg.default", f(7)), logical_mesh({"x": 4})
    found = [strategy(given.op, given.values(), mesh, "d0", at=(r,)).lowering.results[0].type.sizes for r in range(4)]
    assert found == [tuple(piece.shape) for piece in torch.zeros(7).chunk(4)]


class Network(nn.Module):
    """Seven inputs, five samples: nothing that two or three ranks divide."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(7, 9).double(), nn.Linear(9, 5).double()

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.down(F.gelu(self.up(x))), y)


@pytest.mark.parametrize(("ways", "hidden"), [(2, "d0"), (3, "d0"), (4, "d0"), (2, "n"), (4, "n")])
def test_a_segment_runs_with_each_ranks_own_sizes(ways: int, hidden: str) -> None:
    """Samples apart, or the hidden layer apart: column, then row."""
    model, batch = Network(), {"x": torch.rand(5, 7, dtype=torch.float64), "y": torch.tensor([0, 1, 2, 3, 4])}
    program, mesh = capture(model, batch), logical_mesh({"x": ways})
    graph, segment = program.graphs[0].at(5), program.segments[0]
    ways_of = {"d0": ("d0", "d0", "d0", "r0"), "n": ("n", "d1", "k", "-")}[hidden]
    chosen = dict(zip((op.name for op in graph.ops), ways_of, strict=True))
    choice = Choice(0, (), ("[I]",), chosen, {value.name: "[I]" for value in graph.params})
    whole = dict(zip((value.name for value in graph.params), segment.params, strict=True))
    loss = model(**batch)
    loss.backward()

    def rank(index: int) -> tuple[Tensor, dict[str, Tensor]]:
        local = shard(flow(graph, choice, mesh, at=(index,)), (Layout.parse("[I]"),))
        held = {name: model.get_parameter(full).detach().clone().requires_grad_() for name, full in whole.items()}
        found = run_graph(local, held | batch, torch.device("cpu"))[local.outputs[0]]
        gradients = torch.autograd.grad(found, list(held.values()))
        return found.detach(), dict(zip(held, gradients, strict=True))

    for found, gradients in simulate({"x": ways}, rank):
        assert torch.allclose(found, loss)
        for name, gradient in gradients.items():
            assert torch.allclose(gradient, model.get_parameter(whole[name]).grad), name
