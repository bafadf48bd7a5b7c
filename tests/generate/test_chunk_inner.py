"""Backward of an inner segment in chunks gives the whole one's gradients, in less memory; what couples is refused."""

from __future__ import annotations

import pytest
import torch
from captures import capture
from small_models import small_model
from torch import Tensor

from meshwright.capture.program import SegmentGraph
from meshwright.errors import PlanError
from meshwright.generate.chunk_inner import ChunkedBackward, check_inner_chunks, chunked_backward
from meshwright.generate.pair import SegmentPair, compiled_pair, make_pair

AGAIN = ("linear_4", "linear_5", "silu", "mul_4", "rms_norm", "rms_norm_1")


def arguments(graph: SegmentGraph) -> dict[str, Tensor]:
    torch.manual_seed(1)
    return {v.name: torch.randn(v.type.sizes, dtype=getattr(torch, v.type.dtype)) for v in graph.arguments()}


def gradients(pair: SegmentPair | ChunkedBackward, given: dict[str, Tensor]) -> dict[str, Tensor | None]:
    with torch.no_grad():
        outputs, _, saved = pair.forward(given)
        torch.manual_seed(2)
        incoming = [torch.randn_like(output) for output in outputs]
        params = {value.name: given[value.name] for value in pair.graph.params}
        inputs, weights = pair.backward(saved, params, incoming)
        assert saved == []
    return inputs | weights


@pytest.mark.parametrize("chunks", [2, 3])
@pytest.mark.parametrize("name", ["llama", "gpt"])
def test_chunks_give_the_gradients_of_the_whole(name: str, chunks: int) -> None:
    graph = capture(*small_model(name, "float64")).graphs[1]
    whole, part = (make_pair(graph.at(size), "cpu", AGAIN) for size in (6, 6 // chunks))
    given = arguments(whole.graph)
    expected = gradients(make_pair(graph.at(6)), given)
    found = gradients(chunked_backward(whole, part, chunks), given)
    assert list(found) == list(expected)
    for key, tensor in expected.items():
        torch.testing.assert_close(found[key], tensor, rtol=1e-11, atol=1e-12)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inductor's own
def test_compiled_chunks_too() -> None:
    if torch.__version__ < "2.12":
        pytest.skip("torch 2.11's inductor takes the log-sum-exp of float64 attention on a CPU for float32")
    graph = capture(*small_model("llama", "float64")).graphs[1]
    whole, part = (compiled_pair(graph.at(size), "cpu", AGAIN, ()) for size in (6, 3))
    given = arguments(whole.graph)
    expected = gradients(make_pair(graph.at(6)), given)
    for key, tensor in gradients(chunked_backward(whole, part, 2), given).items():
        wanted = expected[key]
        assert wanted is not None
        torch.testing.assert_close(tensor, wanted, rtol=0, atol=1e-12 * float(wanted.abs().max()))


def test_segments_whose_samples_are_not_independent_are_refused() -> None:
    resnet = capture(*small_model("resnet"))
    with pytest.raises(PlanError, match="samples are independent"):
        check_inner_chunks(resnet, 1, 2, resnet.batch)
    llama = capture(*small_model("llama"))
    with pytest.raises(PlanError, match="divisor"):
        check_inner_chunks(llama, 1, 5, llama.batch)
