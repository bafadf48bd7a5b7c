"""What a user relies on for every family: the Program is the model, at any batch, and repeated layers fold."""

from __future__ import annotations

import pytest
from equality import assert_runs_like
from small_families import SMALL, small_family

from meshwright.capture import capture

SEGMENTS = {"gpt": (5, 3), "llama": (5, 3), "resnet": (7, 6)}
"""Segments and distinct graphs at the small sizes; depth adds segments, not graphs."""


@pytest.mark.parametrize("name", SMALL)
def test_a_program_runs_like_its_model(name: str) -> None:
    model, batch = small_family(name)
    assert_runs_like(capture(model, batch), model, batch)


@pytest.mark.parametrize("name", SMALL)
def test_another_batch_needs_no_new_capture(name: str) -> None:
    model, batch = small_family(name)
    program = capture(model, batch)
    for size in (1, 2, 3, 7):
        fresh = capture(*small_family(name, size))
        found = program.at_batch(size)
        assert found.batch == fresh.batch == size
        assert found.fingerprint() == fresh.fingerprint()
        for mine, other in zip((*found.graphs, found.prologue), (*fresh.graphs, fresh.prologue), strict=True):
            assert str(mine.at(size)) == str(other.at(size))


@pytest.mark.parametrize("name", SMALL)
def test_a_program_runs_like_its_model_at_another_batch(name: str) -> None:
    program = capture(*small_family(name))
    for size in (1, 3):
        assert_runs_like(program.at_batch(size), *small_family(name, size))


@pytest.mark.parametrize("name", SMALL)
def test_layers_fold(name: str) -> None:
    program = capture(*small_family(name))
    assert (len(program.segments), len(program.graphs)) == SEGMENTS[name]
