"""Sizes of stages that are looked at: those whose devices can share a value between layers."""

from __future__ import annotations

from small_models import small_model

from meshwright.capture import capture
from meshwright.cluster import load_cluster
from meshwright.pins.stages import pipeline_pins
from meshwright.price.parameter import Setting
from meshwright.solve.pipeline.search import PipelineSearch


def test_sizes_that_split_nothing_evenly_are_left_out() -> None:
    program, cluster = capture(*small_model("gpt")), load_cluster("h100:8")

    def sizes(batch: int, *pins: str) -> set[int]:
        search = PipelineSearch(program.at_batch(batch), cluster, None, Setting(), pipeline_pins(pins))._search
        assert search is not None
        return {search.meshes[place].ranks for place in search._tried(1)}

    assert sizes(8).isdisjoint({5, 7}), "neither samples nor positions nor features are a multiple of these"
    assert 5 in sizes(5)
    assert sizes(8, "pp=2") == set(range(1, 8)), "asked for stages, all are looked at"
