"""A segment pair is the segment: its forward and backward equal running the graph under autograd."""

from __future__ import annotations

import pytest
import torch
from captures import capture
from graph_arguments import arguments
from small_models import NAMES, small_model
from torch import Tensor

from meshwright.capture.execute import run_graph
from meshwright.capture.program import SegmentGraph
from meshwright.generate.pair import SegmentPair, make_pair

CPU = torch.device("cpu")


def by_autograd(graph: SegmentGraph, given: dict[str, Tensor], pair: SegmentPair) -> tuple[list[Tensor], list[Tensor]]:
    bound = dict(given)
    for name in (*pair.grad_inputs, *pair.grad_params):
        bound[name] = bound[name].clone().requires_grad_()
    values = run_graph(graph, bound, CPU)
    outputs = [values[name] for name in graph.outputs]
    wanted = [bound[name] for name in (*pair.grad_inputs, *pair.grad_params)]
    tangents = [torch.full_like(output, 0.5) for output in outputs]
    return [t.detach() for t in outputs], list(torch.autograd.grad(outputs, wanted, tangents))


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.full] * (name == "llama")) for name in NAMES])
def test_a_pair_equals_autograd(name: str) -> None:
    for graph in capture(*small_model(name, "float64")).graphs:
        assert_pair_equals_autograd(graph.at(6))


def assert_pair_equals_autograd(graph: SegmentGraph) -> None:
    pair = make_pair(graph)
    given = arguments(graph)
    outputs, gradients = by_autograd(graph, given, pair)
    with torch.no_grad():
        found, updates, saved = pair.forward(given)
        params = {value.name: given[value.name] for value in graph.params}
        inputs, weights = pair.backward(saved, params, [torch.full_like(output, 0.5) for output in outputs])
    torch.testing.assert_close(found, outputs, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close([*inputs.values(), *weights.values()], gradients, rtol=1e-10, atol=1e-10)
    assert len(updates) == len(graph.updates)
    assert not set(pair.saved) & {value.name for value in graph.params}, "parameters are handed anew, not saved"


def test_what_forward_saves_is_what_autograd_saves() -> None:
    """Per storage: every tensor that autograd keeps for a transformer block, and nothing besides."""
    graph = capture(*small_model("llama", "float64")).graphs[1].at(6)
    pair = make_pair(graph)
    given = arguments(graph)
    params = {given[value.name].data_ptr() for value in graph.params}
    seen: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        seen[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    bound = {
        k: v.clone().requires_grad_() if k in (*pair.grad_inputs, *pair.grad_params) else v for k, v in given.items()
    }
    params |= {bound[value.name].untyped_storage().data_ptr() for value in graph.params}
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        values = run_graph(graph, bound, CPU)
    by_hooks = sum(size for pointer, size in seen.items() if pointer not in params)
    with torch.no_grad():
        _, _, saved = pair.forward(given)
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in saved}
    assert sum(storages.values()) == by_hooks
    assert values
