"""What a user relies on for every family: the Program is the model, at any batch, and repeated layers fold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from equality import assert_runs_like
from references import FAMILIES
from small_families import captured, small_family

from meshwright.capture import capture
from meshwright.models.reference import parse_reference

QUICK = {("gpt", 1), ("moe", 3), ("resnet", 7)}
RUN = ("gpt", "moe", "t5", "resnet", "unet", "mlp")
"""Families whose captures are run in the quick tests; in `make test-all` all are."""
CAST = ("gpt", "moe", "resnet")
"""Families whose captures in half precision are compared in the quick tests; in `make test-all` all are."""
DEEPER = ("gpt", "llama", "moe", "bert", "t5", "vit")

run = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.full] * (name not in RUN)) for name in FAMILIES]
)


def sizes() -> Iterator[Any]:
    for name in FAMILIES:
        for size in (1, 2, 3, 7):
            yield pytest.param(name, size, marks=[] if (name, size) in QUICK else pytest.mark.full)


@run
def test_a_program_runs_like_its_model(name: str) -> None:
    assert_runs_like(captured(name), *small_family(name))


@run
def test_a_program_runs_like_its_model_at_another_batch(name: str) -> None:
    for size in (1, 3):
        assert_runs_like(captured(name).at_batch(size), *small_family(name, size))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.full] * (name not in CAST)) for name in FAMILIES]
)
def test_precision_is_that_of_the_model_cast(name: str) -> None:
    model, batch = small_family(name)
    program = capture(model, batch, precision="bf16")
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    half = {key: t.bfloat16() if t.is_floating_point() else t for key, t in batch.items()}
    assert_runs_like(program, model.to(torch.bfloat16), half)
    assert {p.type.dtype for p in program.parameters} == {"bfloat16"}


@pytest.mark.parametrize(("name", "size"), list(sizes()))
def test_another_batch_equals_a_fresh_capture(name: str, size: int) -> None:
    fresh = capture(*small_family(name, size))
    found = captured(name).at_batch(size)
    assert found.batch == fresh.batch == size
    assert found.fingerprint() == fresh.fingerprint()
    for mine, other in zip((*found.graphs, found.prologue), (*fresh.graphs, fresh.prologue), strict=True):
        assert str(mine.at(size)) == str(other.at(size))


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.full] * (name != "gpt")) for name in DEEPER])
def test_depth_adds_segments_but_no_graphs(name: str) -> None:
    shallow = captured(name)
    model, batch, _ = parse_reference(FAMILIES[name], ["layers=5"]).meta(4)
    deep = capture(model, batch)
    stacks = 2 if name == "t5" else 1
    assert len(deep.segments) == len(shallow.segments) + 2 * stacks
    assert len(deep.graphs) == len(shallow.graphs)


def test_the_encoders_output_and_the_position_bias_are_carried() -> None:
    program = captured("t5")
    layers = [segment for segment in program.segments if segment.name.startswith("decoder.layers.")]
    assert len(layers) == 3
    assert len({segment.graph for segment in layers}) == 1
    assert [len(segment.inputs) for segment in layers] == [3, 3, 3]
    assert len(set.intersection(*(set(segment.inputs) for segment in layers))) == 2


def test_skips_are_carried() -> None:
    program = captured("unet")
    names = {segment.name for segment in program.segments}
    assert {"down.0", "down.1", "middle1", "attention", "middle2"} <= names
    assert len(program.segments) >= 12
    assert max(len(graph.ops) for graph in program.graphs) <= 19  # the attention, whole
    made = {name: index for index, segment in enumerate(program.segments) for name in segment.outputs}
    far = [i - made[name] for i, segment in enumerate(program.segments) for name in segment.inputs]
    assert max(far) > 8
