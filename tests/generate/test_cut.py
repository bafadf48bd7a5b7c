"""Whatever is kept, a pair computes the same; nothing runs twice in backward, and what must not run again is kept."""

from __future__ import annotations

import random
from collections import Counter

import pytest
import torch
from captures import capture
from graph_arguments import arguments
from small_models import small_model
from torch import Tensor, fx, nn

from meshwright.capture.program import SegmentGraph
from meshwright.cost.traced.storage import base, is_view, runs_once
from meshwright.generate.cut import cut, cut_at, read_by_backward
from meshwright.generate.joint import Joint, trace
from meshwright.generate.pair import SegmentPair, compiled_pair, make_pair, pair_of


def step(pair: SegmentPair) -> tuple[list[Tensor | None], list[Tensor]]:
    """(outputs, buffers' new values and gradients, what was kept), on fixed arguments."""
    given = arguments(pair.graph)
    with torch.no_grad():
        outputs, updates, saved = pair.forward(given)
        kept = list(saved)
        params = {value.name: given[value.name] for value in pair.graph.params}
        inputs, weights = pair.backward(saved, params, [torch.full_like(output, 0.5) for output in outputs])
    assert not saved, "backward empties what it was handed"
    return [*outputs, *updates.values(), *inputs.values(), *weights.values()], kept


def bytes_of(tensors: list[Tensor]) -> int:
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())


def graph_of(name: str, index: int = 1, dtype: str = "float64") -> SegmentGraph:
    return capture(*small_model(name, dtype)).graphs[index].at(6)


@pytest.mark.parametrize("name", ["gpt", "resnet", pytest.param("llama", marks=pytest.mark.full)])
@pytest.mark.parametrize("index", [0, 1, 2])
def test_any_kept_set_gives_the_same_gradients_bit_by_bit(name: str, index: int) -> None:
    joint = trace(graph_of(name, index))
    truth, _ = step(pair_of(joint, cut_at(joint)))
    primal = [node for node in joint.names if node.op == "call_function"]
    draw = random.Random(0)
    for share in (0.0, 0.2, 0.5, 0.8, 1.0):
        found = cut(joint, {node for node in primal if draw.random() < share})
        results, _ = step(pair_of(joint, found))
        for left, right in zip(results, truth, strict=True):
            assert (left is None) == (right is None)
            assert left is None or torch.equal(left, right)
        counts = Counter(found.again)
        assert not counts or max(counts.values()) == 1, "each storage is made anew at most once"


@pytest.mark.parametrize("name", ["gpt", "llama", "resnet"])
def test_halves_that_are_only_looked_at_have_the_nodes_of_those_that_run(name: str) -> None:
    joint = trace(graph_of(name))
    primal = [node for node in joint.names if node.op == "call_function"]
    draw = random.Random(1)
    for share in (0.0, 0.5, 1.0):
        kept = {node for node in primal if draw.random() < share}
        ran, looked = cut(joint, kept), cut(joint, kept, run=False)
        assert (ran.saved, ran.again, ran.forced) == (looked.saved, looked.again, looked.forced)
        for one, other in ((ran.halves.first, looked.halves.first), (ran.halves.second, looked.halves.second)):
            left, right = ([_shown(node) for node in half.graph.nodes] for half in (one, other))
            assert left == right


@pytest.mark.parametrize("name", ["gpt", "llama"])
def test_a_weights_gradient_stands_before_its_inputs(name: str) -> None:
    """So that what the linear has read is let go before a gradient as large is made."""
    joint = trace(graph_of(name))
    second = cut_at(joint).halves.second
    products = [node for node in second.graph.nodes if node.target is torch.ops.aten.mm.default]
    makes = ["weight" if base(node.all_input_nodes[-1]).name not in joint.own else "input" for node in products]
    assert len(makes) > 7
    assert makes == ["weight", "input"] * (len(makes) // 2)


def _shown(node: fx.Node) -> tuple[object, ...]:
    users = sorted(user.name for user in node.users)
    return node.op, node.name, str(node.target), repr(node.args), repr(node.kwargs), users, node.meta.get("val") is None


def test_recomputing_everything_keeps_the_inputs_alone() -> None:
    graph = graph_of("llama")
    joint = trace(graph)
    every = [joint.names[node] for node in read_by_backward(joint)]
    pair = make_pair(graph, recompute=every)
    assert set(pair.saved) == {value.name for value in (*graph.inputs, *graph.shared_values)}
    _, kept = step(pair)
    _, all_kept = step(make_pair(graph))
    assert bytes_of(kept) < 0.2 * bytes_of(all_kept)


def test_a_view_is_kept_as_its_base_and_only_once() -> None:
    joint = trace(graph_of("llama"))
    for node in read_by_backward(joint):
        assert base(node) is node
        assert not is_view(node)
    _, kept = step(pair_of(joint, cut_at(joint)))
    assert len({t.untyped_storage().data_ptr() for t in kept}) == len(kept)


def test_names_say_which_op_of_the_segment_made_what() -> None:
    joint = trace(graph_of("llama"))
    names = [joint.names[node] for node in read_by_backward(joint)]
    assert {"linear_4", "linear_5", "silu", "mul_4", "add_2", "add", "add_1"} <= set(names)
    assert "scaled_dot_product_attention~0" in names, "the logarithms that attention keeps"
    assert any(name.startswith("rms_norm~") for name in names), "statistics of the norm"
    assert len(set(joint.names.values())) == len(joint.names)


def test_the_same_trace_gives_the_same_names() -> None:
    first = trace.__wrapped__(graph_of("gpt"))
    second = trace.__wrapped__(graph_of("gpt"))
    assert [n.name for n in first.names] == [n.name for n in second.names]
    assert list(first.names.values()) == list(second.names.values())


def recompute_all(joint: Joint) -> SegmentPair:
    return pair_of(joint, cut(joint, ()))


def test_what_is_computed_again_stands_right_before_its_reader() -> None:
    pair = recompute_all(trace(graph_of("llama")))
    order = [node for node in pair.halves.second.graph.nodes if node.op == "call_function"]
    first_gradient = next(i for i, node in enumerate(order) if node.name not in {n.name for n in pair.joint.names})
    attention = next(i for i, node in enumerate(order) if "attention" in str(node.target) and "backward" in node.name)
    again = {node.name for node, name in pair.joint.names.items() if name in pair.cut.again}
    late = [i for i, node in enumerate(order) if node.name in again and i > first_gradient]
    assert late or attention, "not everything is computed again before backward begins"


class Unknown(nn.Module):
    """Has an op of which nothing says that it gives the same result again."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.first(x))
        return torch.tanh(self.second(torch.ops.cut_tests.scaled(y) * y)).square().mean()


@torch.library.custom_op("cut_tests::scaled", mutates_args=())
def scaled(x: Tensor) -> Tensor:
    return x * 2


scaled.register_fake(torch.empty_like)
scaled.register_autograd(lambda ctx, gradient: gradient * 2)


def test_what_must_not_run_again_is_kept_and_named() -> None:
    (graph,) = (graph.at(4) for graph in capture(Unknown(), {"x": torch.randn(4, 8)}).graphs)
    found = cut(trace(graph), ())
    ((name, reason),) = found.forced
    assert name == "scaled"
    assert "nothing says" in reason
    assert name in found.saved


def test_ops_that_draw_or_write_do_not_run_again() -> None:
    aten = torch.ops.aten
    graph = fx.Graph()
    x = graph.placeholder("x")
    again = {
        aten.bernoulli.default: False,
        aten.add_.Tensor: False,
        aten.add.Tensor: True,
        torch.ops.meshwright.uniform.default: True,
    }
    for target, fine in again.items():
        assert bool(runs_once(graph.call_function(target, (x, x)))) != fine
    attention = aten._scaled_dot_product_flash_attention.default
    assert not runs_once(graph.call_function(attention, (x, x, x, 0.0, True)))
    assert not runs_once(graph.call_function(attention, (x, x, x)))
    assert runs_once(graph.call_function(attention, (x, x, x, 0.1, True)))


class Dropped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 8), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).square().mean()


def test_dropout_is_drawn_again_from_its_key() -> None:
    (graph,) = (graph.at(4) for graph in capture(Dropped(), {"x": torch.randn(4, 8)}).graphs)
    joint = trace(graph)
    pair = recompute_all(joint)
    assert "dropout" in pair.cut.again
    truth, _ = step(pair_of(joint, cut_at(joint)))
    found, _ = step(pair)
    assert all(torch.equal(a, b) for a, b in zip(found, truth, strict=True))


def test_running_statistics_are_updated_once() -> None:
    graphs = [graph.at(6) for graph in capture(*small_model("resnet", "float64")).graphs]
    graph = next(graph for graph in graphs if graph.updates)
    joint = trace(graph)
    given = arguments(graph)
    before = {value.name: given[value.name].clone() for value in graph.buffers}
    with torch.no_grad():
        _, kept, saved = pair_of(joint, cut_at(joint)).forward(given)
        pair = recompute_all(joint)
        outputs, updates, saved = pair.forward(given)
        params = {value.name: given[value.name] for value in graph.params}
        pair.backward(saved, params, [torch.ones_like(output) for output in outputs])
    for name, tensor in before.items():
        assert torch.equal(given[name], tensor), "the buffer itself is not written to"
    for name, tensor in kept.items():
        assert torch.equal(updates[name], tensor)
        assert not torch.equal(tensor, before[name])


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inductor's own
def test_a_compiled_pair_computes_the_same() -> None:
    if torch.__version__ < "2.12":
        pytest.skip("torch 2.11's inductor takes the log-sum-exp of float64 attention on a CPU for float32")
    graph = graph_of("llama")
    recompute = ("silu", "mul_4", "rms_norm", "rms_norm_1")
    truth, _ = step(make_pair(graph, recompute=recompute))
    found, kept = step(compiled_pair(graph, "cpu", recompute, ()))
    _, eager = step(make_pair(graph, recompute=recompute))
    assert bytes_of(kept) == bytes_of(eager)
    for left, right in zip(found, truth, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-9, atol=1e-9)
