"""Checks of pins for pipelines against a program and a cluster."""

from __future__ import annotations

from meshwright.capture.program import Program
from meshwright.cluster import Cluster
from meshwright.errors import PlanError, counted
from meshwright.pins.meshes import check_microbatches
from meshwright.pins.stages import PipelinePins, check_stages

FEWEST_RUNS = 2
"""Runs of segments that a stage has at least under `interleaved`."""


def check_pins(pins: PipelinePins, program: Program, cluster: Cluster) -> None:
    """Refuses stages without devices or layers, interleaved stages without several runs, and micro-batches that do not
    cut the batch."""
    check_stages(pins, cluster.device_count)
    check_microbatches(pins.rest, program.batch)
    segments, stages, runs = len(program.segments), pins.stages or 2, pins.runs or FEWEST_RUNS
    if pins.interleaved and segments < runs * stages:
        raise PlanError(
            f"no pipeline with {pins.text} for a model of {counted(segments, 'layer')}",
            f"at least {runs * stages} layers: each of {stages} stages has {runs} runs of them or more",
            f"ask for another schedule{', fewer stages' if stages > 2 else ''} or a model of more layers",
        )
    if pins.layers is not None and sum(pins.layers) != segments:
        raise PlanError(
            f"pin layers={'+'.join(map(str, pins.layers))} ({sum(pins.layers)})",
            f"numbers that sum to {segments}, the layers of the model as `meshwright profile` lists them",
            "change the pin",
        )
    if pins.stages is not None and pins.stages > segments:
        expected = f"at most {counted(segments, 'stage')}: each has a layer"
        raise PlanError(f"pin {pins.pp} for {counted(segments, 'layer')}", expected, "change the pin")
