"""A pair's backward in pieces computes what it computes whole, compiled or not."""

from __future__ import annotations

import pytest
import torch

from meshwright.capture import capture
from meshwright.cluster import load_cluster
from meshwright.generate.pair import SegmentPair
from meshwright.generate.pieces import pieces
from meshwright.generate.program import generate
from meshwright.models.reference import parse_reference
from meshwright.solve.memory.plan import one_device_plan


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inductor's own
@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.full)])
def test_halves_are_the_whole(compiled: bool) -> None:
    program = capture(*parse_reference("gpt?layers=2&hidden=16&heads=2&ffn=32&vocab=32&seq=4").meta(2))
    pair = generate(program, one_device_plan(program, load_cluster("local:1").mesh((1,)))).pairs[1]
    assert isinstance(pair, SegmentPair)
    torch.manual_seed(0)
    sizes = {value.name: value.type.sizes for value in (*pair.graph.inputs, *pair.graph.params)}
    given = {name: torch.randn(size) for name, size in sizes.items()}
    params = {value.name: given[value.name] for value in pair.graph.params}
    with torch.no_grad():
        outputs, _, saved = pair.forward(dict(given))
        gradients = [torch.randn_like(output) for output in outputs]
        inputs, weights = pair.backward(list(saved), params, list(gradients))
        made = pieces(pair, restored=False, compiled=compiled)
        first, rest = made.input_half(list(saved), params, list(gradients))
        second = made.weight_half(rest, params)
    # A key's bias has a true gradient of zero: what is seen of it is rounding, so it is held to the largest of all.
    floor = 1e-6 * max(
        gradient.abs().max() for gradient in (*inputs.values(), *weights.values()) if gradient is not None
    )
    for whole, halves in ((inputs, first), (weights, second)):
        assert whole.keys() == halves.keys()
        for name, gradient in whole.items():
            found = halves[name]
            assert gradient is not None
            assert found is not None
            assert (found - gradient).abs().max() <= max(1e-5 * gradient.abs().max(), floor), name
