"""Sizes of stages that are looked at: all, whether or not their devices can share a value between layers evenly."""

from __future__ import annotations

from small_models import small_model

from meshwright.capture import capture
from meshwright.cluster import load_cluster
from meshwright.pins.stages import pipeline_pins
from meshwright.planner.pipeline.search import PipelineSearch
from meshwright.price.parameter import Setting


def test_on_few_devices_stages_of_every_size_are_looked_at() -> None:
    """The bound covers what is looked at alone: a stage of five devices may be the fastest."""
    program, cluster = capture(*small_model("gpt")), load_cluster("h100:8")
    for pins in ((), ("pp=2",)):
        search = PipelineSearch(program.at_batch(8), cluster, None, Setting(), pipeline_pins(pins))
        assert {search.meshes[place].ranks for place in search._tried(1)} == set(range(1, 8))
