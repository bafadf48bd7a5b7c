"""A pair's backward in pieces computes what it computes whole, compiled or not."""

from __future__ import annotations

import pytest
import torch
from graph_arguments import arguments
from torch import Tensor

from meshwright.capture import capture
from meshwright.cluster import load_cluster
from meshwright.generate.joint import label
from meshwright.generate.pair import SegmentPair
from meshwright.generate.pieces import Gradients, Pieces, pieces
from meshwright.generate.program import generate
from meshwright.models.reference import parse_reference
from meshwright.planner.memory.plans import one_device_plan

MODELS = {
    "gpt": "gpt?layers=2&hidden=16&heads=2&ffn=32&vocab=32&seq=4",
    "unet": "unet?width=4&levels=1&blocks=1&heads=2&image=4",
}


def pairs_of(name: str) -> list[SegmentPair]:
    """One for each distinct graph."""
    reference = parse_reference(MODELS[name])
    batch = {
        key: torch.zeros(shape, dtype=torch.int64 if dtype == "int64" else torch.float64)
        for key, (shape, dtype) in reference.shapes(2).items()
    }
    program = capture(reference.build().double(), batch, reference.family.loss)
    made = generate(program, one_device_plan(program, load_cluster("local:1").mesh((1,)))).pairs
    found = {segment.graph: made[index] for index, segment in enumerate(program.segments)}
    return [pair for pair in found.values() if isinstance(pair, SegmentPair)]


def same(found: Gradients, true: Gradients, floor: Tensor) -> None:
    """floor: a key's bias has a true gradient of zero; what is seen of it is rounding."""
    assert found.keys() == true.keys()
    for name, gradient in true.items():
        other = found[name]
        assert gradient is not None
        assert other is not None
        assert (other - gradient).abs().max() <= torch.maximum(1e-10 * gradient.abs().max(), floor), name


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inductor's own
@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.full)])
@pytest.mark.parametrize("name", MODELS)
def test_halves_are_the_whole_and_the_weights_read_no_parameter(name: str, compiled: bool) -> None:
    """Where one is stored in pieces, it is gathered for the input half only. A U-Net's stem hands no gradient on: its
    norm's and its convolution's backwards read parameters all the same."""
    for pair in pairs_of(name):
        given = arguments(pair.graph)
        params = {value.name: given[value.name] for value in pair.graph.params}
        with torch.no_grad():
            outputs, _, saved = pair.forward(dict(given))
            gradients = [torch.randn_like(output) for output in outputs]
            inputs, weights = pair.backward(list(saved), params, list(gradients))
            made = pieces(pair, restored=False, compiled=compiled)
            assert isinstance(made, Pieces)
            first, rest = made.input_half(list(saved), params, list(gradients))
            second = made.weight_half(rest)
        assert not {label(name) for name in params} & {*made.weights.own}
        every = [gradient for gradient in (*inputs.values(), *weights.values()) if gradient is not None]
        floor = 1e-12 * torch.stack([gradient.abs().max() for gradient in every]).max()
        same(first, inputs, floor)
        same(second, weights, floor)
