"""Whether a program can have the stages that pins ask for; what is said where none fits."""

from __future__ import annotations

from collections.abc import Callable

from meshwright.capture.program import Program
from meshwright.cluster import Cluster
from meshwright.errors import PlanError, counted
from meshwright.pins.meshes import check_microbatches
from meshwright.pins.stages import PipelinePins, check_stages
from meshwright.plan.units import show_bytes
from meshwright.planner.infeasible.min_memory import MemoryNeeded

FEWEST_RUNS = 2
"""Of a stage, under `interleaved`."""


def check_pins(asked: PipelinePins, program: Program, cluster: Cluster) -> None:
    """Each stage has devices and a layer, each interleaved one several runs of them; micro-batches cut the batch."""
    check_stages(asked, cluster.device_count)
    check_microbatches(asked.rest, program.batch)
    segments, stages, runs = len(program.segments), asked.stages or 2, asked.runs or FEWEST_RUNS
    if asked.interleaved and segments < runs * stages:
        raise PlanError(
            f"no pipeline with {asked.text} for a model of {counted(segments, 'layer')}",
            f"at least {runs * stages} layers: each of {stages} stages has {runs} runs of them or more",
            f"ask for another schedule{', fewer stages' if stages > 2 else ''} or a model of more layers",
        )
    if asked.layers is not None and sum(asked.layers) != segments:
        raise PlanError(
            f"pin layers={'+'.join(map(str, asked.layers))} ({sum(asked.layers)})",
            f"numbers that sum to {segments}, the layers of the model as `meshwright profile` lists them",
            "change the pin",
        )
    if asked.stages is not None and asked.stages > segments:
        expected = f"at most {counted(segments, 'stage')}: each has a layer"
        raise PlanError(f"pin {asked.pp} for {counted(segments, 'layer')}", expected, "change the pin")


def no_pipeline(
    asked: PipelinePins, cluster: Cluster, budget_bytes: int, least: Callable[[], MemoryNeeded | None]
) -> PlanError:
    """Where nothing but a pipeline was wanted: there is not the memory, or none in any. least: that does."""
    found, types = least(), [device.name for device in cluster.devices]
    if found is None and asked.schedule == "interleaved" and len(types) > 1:
        return PlanError(
            f"no pipeline with {asked.text} on {cluster.name}, whose devices are {' and '.join(types)}",
            "devices of one type: interleaved stages are all alike",
            "ask for another schedule, or use the devices of one type",
        )
    if found is None:
        return PlanError(
            f"no pipeline with {asked.text} on {cluster.name}, whatever memory there is",
            "pins and a batch that some stages can have",
            "drop a pin or use more devices",
        )
    return PlanError(
        f"no pipeline with {asked.text} fits on {cluster.name} in {budget_bytes:,} bytes ({show_bytes(budget_bytes)}) "
        "per device",
        found.against(budget_bytes),
        "raise the memory limit, drop a pin or use more devices",
    )
