"""Sizes of stages that are looked at: those whose devices can share a value between layers."""

from __future__ import annotations

from small_models import small_model

from meshwright.capture import capture
from meshwright.cluster import load_cluster
from meshwright.pins.stages import pipeline_pins
from meshwright.price.parameter import Setting
from meshwright.solve.pipeline.search import PipelineSearch


def sizes(batch: int, *pins: str) -> set[int]:
    program = capture(*small_model("gpt")).at_batch(batch)
    search = PipelineSearch(program, load_cluster("h100:8"), None, Setting(), pipeline_pins(pins))._search
    assert search is not None
    return {search.meshes[place].ranks for place in search._tried(1)}


def test_sizes_that_split_nothing_evenly_are_left_out() -> None:
    assert sizes(8).isdisjoint({5, 7}), "neither samples nor positions nor features are a multiple of these"
    assert 5 in sizes(5)
    assert sizes(8, "pp=2") == set(range(1, 8)), "asked for stages, all are looked at"
