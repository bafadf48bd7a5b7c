"""The fused tail computes what the whole segment does, in less memory; what cannot be chunked is refused by name."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from captures import capture
from small_models import small_model
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[1] / "profile"))
from live_bytes import peak_of

from meshwright.capture.program import Program, SegmentGraph
from meshwright.errors import PlanError
from meshwright.generate.chunk import ChunkedPair, check_chunkable, chunked
from meshwright.generate.pair import SegmentPair, make_pair


def pairs(program: Program, chunks: int) -> tuple[SegmentPair, ChunkedPair]:
    graph = program.graph(program.segments[-1])
    found = check_chunkable(program, chunks, program.batch)
    part = make_pair(graph.at(program.batch // chunks))
    whole = make_pair(graph.at(program.batch))
    return whole, chunked(whole.graph, part, chunks, found)


def arguments(graph: SegmentGraph, ignored: int = 0) -> dict[str, Tensor]:
    """`ignored`: so many targets, from the first on, do not count."""
    torch.manual_seed(1)
    found = {}
    for value in graph.arguments():
        if value.type.is_float:
            found[value.name] = torch.randn(value.type.sizes, dtype=getattr(torch, value.type.dtype))
        else:
            found[value.name] = torch.randint(0, 12, value.type.sizes)
            found[value.name].view(-1)[:ignored] = -100
    return found


def step(pair: SegmentPair | ChunkedPair, given: dict[str, Tensor], upstream: float) -> list[Tensor | None]:
    with torch.no_grad():
        outputs, _, saved = pair.forward(given)
        params = {value.name: given[value.name] for value in pair.graph.params}
        inputs, weights = pair.backward(saved, params, [torch.full_like(outputs[0], upstream)])
    return [*outputs, *inputs.values(), *weights.values()]


@pytest.mark.parametrize("name", ["gpt", "llama"])
@pytest.mark.parametrize("chunks", [1, 2, 3, 6])
@pytest.mark.parametrize("ignored", [0, 5, 30])
def test_chunks_give_the_loss_and_gradients_of_the_whole(name: str, chunks: int, ignored: int) -> None:
    """With 30 of 72 targets ignored, whole chunks of one or two samples count nothing."""
    whole, parts = pairs(capture(*small_model(name, "float64")), chunks)
    given = arguments(whole.graph, ignored)
    for left, right in zip(step(parts, given, 0.5), step(whole, given, 0.5), strict=True):
        assert (left is None) == (right is None)
        torch.testing.assert_close(left, right, rtol=1e-12, atol=1e-14)


def test_narrow_gradients_are_summed_in_single_precision() -> None:
    model, batch = small_model("llama", "float32")
    whole, parts = pairs(capture(model.to(torch.bfloat16), batch), 6)
    given = arguments(whole.graph)
    exact, _ = pairs(capture(*small_model("llama", "float64")), 6)
    truth = step(exact, {k: v.double() if v.is_floating_point() else v for k, v in given.items()}, 1.0)
    by_chunks, at_once = step(parts, given, 1.0), step(whole, given, 1.0)
    for left, right, true in zip(by_chunks[2:], at_once[2:], truth[2:], strict=True):
        errors = [(t.double() - true).norm() for t in (left, right)]
        assert left.dtype == torch.bfloat16
        assert errors[0] <= 1.5 * errors[1] + 1e-6 * true.norm()


def test_one_chunk_of_logits_is_in_memory_at_a_time() -> None:
    torch.manual_seed(0)
    head = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 512, bias=False))

    class Tail(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = head

        def forward(self, x: Tensor, targets: Tensor) -> Tensor:
            return nn.functional.cross_entropy(self.head(x).flatten(0, 1), targets.flatten())

    batch = {"x": torch.randn(8, 32, 16), "targets": torch.randint(0, 512, (8, 32))}
    program = capture(Tail(), batch)
    whole, parts = pairs(program, 8)
    given = arguments(whole.graph)
    outside = list(given.values())
    most, least = (peak_of(outside, lambda p=pair: step(p, given, 1.0)) for pair in (whole, parts))
    logits = 8 * 32 * 512 * 4
    assert most > 3 * logits
    assert least < most / 3


class Largest(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).amax()


def test_a_loss_that_is_no_sum_and_a_batch_that_does_not_divide_are_refused() -> None:
    with pytest.raises(PlanError, match="chunks"):
        check_chunkable(capture(Largest(), {"x": torch.randn(4, 4)}), 2, 4)
    with pytest.raises(PlanError, match="4 chunks of a batch of 6"):
        check_chunkable(capture(*small_model("gpt")), 4, 6)
