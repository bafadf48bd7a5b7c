"""Generated calls are those one would write by hand, and results are handed out while others are still to come."""

from __future__ import annotations

import operator

import torch
from captures import capture
from graph_arguments import arguments
from small_models import small_model
from torch import Tensor, fx

from meshwright.generate.boxed import boxed
from meshwright.generate.pair import make_pair

aten = torch.ops.aten


def traced() -> fx.GraphModule:
    """One view for each reader, weights turned round twice, arguments detached: as a trace has it."""
    graph = fx.Graph()
    x, w = graph.placeholder("x"), graph.placeholder("w")
    inside = graph.call_function(aten.detach.default, (w,))
    turned = graph.call_function(aten.t.default, (graph.call_function(aten.t.default, (inside,)),))
    first = graph.call_function(aten.view.default, (graph.call_function(aten.view.default, (x, [2, 6])), [3, 4]))
    second = graph.call_function(aten.view.default, (x, [3, 4]))
    made = graph.call_function(aten.mm.default, (first, turned))
    graph.output((made, graph.call_function(aten.mm.default, (second, turned))))
    return fx.GraphModule({}, graph)


def test_views_that_change_nothing_are_left_out() -> None:
    module = traced()
    run = boxed(module)
    x, w = torch.randn(12), torch.randn(4, 5)
    torch.testing.assert_close(run([x, w]), module(x, w), rtol=0, atol=0)
    code = run.__self__.code  # type: ignore[attr-defined]
    assert (code.count("torch.reshape("), code.count("torch.mm(")) == (1, 2)
    assert not [call for call in ("detach", "torch.t(", "torch.ops") if call in code]


def test_group_norm_takes_values_that_lie_otherwise_than_traced() -> None:
    """Its kernels read memory in order; backward's does not even check."""
    graph = fx.Graph()
    gradient, x, weight = (graph.placeholder(name) for name in ("gradient", "x", "weight"))
    sizes = (2, 6, 4, 3)
    norm = graph.call_function(aten.native_group_norm.default, (x, weight, None, *sizes[:2], 4, 3, 1e-5))
    _, mean, rstd = (graph.call_function(operator.getitem, (norm, index)) for index in range(3))
    args = (gradient, x, mean, rstd, weight, *sizes[:2], 4, 3, [True, True, True])
    back = graph.call_function(aten.native_group_norm_backward.default, args)
    graph.output(tuple(graph.call_function(operator.getitem, (back, index)) for index in range(3)))
    module = fx.GraphModule({}, graph)
    run = boxed(module)
    plain = (torch.randn(2, 6, 4), torch.randn(2, 6, 4), torch.randn(6))
    turned = [tensor.transpose(1, 2).contiguous().transpose(1, 2) for tensor in plain[:2]]
    torch.testing.assert_close(run([*turned, plain[2]]), module(*plain), rtol=1e-5, atol=1e-6)


class Heard:
    """Notes what has been told, products multiplied."""

    def __init__(self) -> None:
        self.found: dict[int, Tensor] = {}
        self.order: list[int] = []

    def result(self, place: int, tensor: Tensor) -> None:
        self.found[place] = tensor
        self.order.append(place)

    def product(self, place: int, one: Tensor, other: Tensor) -> None:
        self.result(place, torch.mm(one, other))


def test_gradients_are_told_in_the_order_of_backward() -> None:
    graph = capture(*small_model("gpt", "float64")).graphs[1].at(6)
    pair = make_pair(graph)
    given = arguments(graph)
    heard = Heard()
    with torch.no_grad():
        outputs, _, saved = pair.forward(given)
        params = [given[value.name] for value in graph.params]
        tangent = torch.full_like(outputs[0], 0.5)
        inputs, weights = pair.run_backward(tuple(saved), params, [tangent])
        tells = pair.telling()
        again, rest = pair.run_backward(tuple(saved), params, [tangent], lambda box: tells(box, heard))
    assert not rest
    torch.testing.assert_close(list(again), list(inputs), rtol=0, atol=0)
    torch.testing.assert_close([heard.found[place] for place in range(len(weights))], list(weights), rtol=0, atol=0)
    assert heard.order[0] >= len(weights) - 2, "the last layer's come first"
    assert set(heard.order[-2:]) == {0, 1}, "the first norm's come last"
