"""Pins that speak of stages: what they ask for, and whether a cluster and a program can have it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from meshwright.capture.program import Program
from meshwright.cluster import Cluster
from meshwright.errors import PlanError, counted
from meshwright.pins.parts import AXES, pin_parts, pinned_mesh
from meshwright.plan.cutting import check_cut
from meshwright.plan.units import show_bytes
from meshwright.schedule import ORDERS
from meshwright.sizes import is_whole
from meshwright.solve.min_memory import MemoryNeeded

FEWEST_RUNS = 2
"""Of a stage, under `interleaved`."""


@dataclass(frozen=True, slots=True)
class PipelinePins:
    """What pins say of stages: `pp=K`, or `pp=2+2+4` with their devices; `schedule=NAME`; `vpp=V` runs of segments a
    stage; and the rest, which speak of each stage's own mesh."""

    stages: int | None
    schedule: str | None
    rest: tuple[str, ...]
    sizes: tuple[int, ...] | None = None
    runs: int | None = None

    @property
    def pp(self) -> str:
        """The pin of stages as it is written."""
        return f"pp={'+'.join(map(str, self.sizes)) if self.sizes else self.stages}" if self.stages else ""

    @property
    def text(self) -> str:
        """All of them."""
        schedule = f"schedule={self.schedule}" if self.schedule else ""
        runs = f"vpp={self.runs}" if self.runs else ""
        return ", ".join(text for text in (self.pp, schedule, runs, *self.rest) if text)

    @property
    def one_stage(self) -> bool:
        """No pipeline is wanted: pins that speak of a mesh mean that of all devices, unless stages are pinned too."""
        if self.stages is not None or self.schedule is not None or (self.runs or 1) > 1:
            return self.stages == 1 or self.schedule == "one-stage"
        return any(pin_parts(text)[0] not in ("microbatch", "microbatches") for text in self.rest)

    @property
    def pipeline(self) -> bool:
        """Nothing but a pipeline is wanted."""
        named = self.stages is not None or self.schedule is not None or (self.runs or 1) > 1
        return not self.one_stage and named


def pipeline_pins(texts: Sequence[str]) -> PipelinePins:
    given: dict[str, str] = {}
    for key, value in map(pin_parts, texts):
        if key in ("pp", "schedule", "vpp") and given.setdefault(key, value) != value:
            raise PlanError(f"pins {key}={given[key]} and {key}={value}", f"one {key}", "drop one of them")
    stages, schedule = given.get("pp"), given.get("schedule")
    parts = stages.split("+") if stages is not None else []
    if not all(map(is_whole, parts)):
        raise PlanError(f"pin pp={stages}", "a number of stages, or their devices such as pp=2+2+4", "correct the pin")
    if schedule is not None and schedule not in (*ORDERS, "searched", "one-stage"):
        raise PlanError(f"pin schedule={schedule}", f"one of {', '.join(ORDERS)}, searched", "correct the pin")
    if parts == ["1"] and schedule not in (None, "one-stage"):
        raise PlanError(f"pins pp=1 and schedule={schedule}", "a schedule where there are stages", "drop one of them")
    runs = _runs(given)
    rest = tuple(text for text in texts if pin_parts(text)[0] not in ("pp", "schedule", "vpp"))
    if len(parts) > 1:
        return PipelinePins(len(parts), schedule, rest, tuple(map(int, parts)), runs)
    return PipelinePins(int(parts[0]) if parts else None, schedule, rest, None, runs)


def _runs(given: Mapping[str, str]) -> int | None:
    """Of a `vpp` pin. Several runs a stage are an interleaved schedule, one run is any other."""
    if "vpp" not in given:
        return None
    runs, schedule = int(given["vpp"]), given.get("schedule")
    if runs > 1 and given.get("pp") == "1":
        raise PlanError(f"pins pp=1 and vpp={runs}", "vpp where there are stages", "drop one of them")
    if schedule is not None and (schedule == "interleaved") != (runs > 1):
        expected = "schedule=interleaved for vpp=2 or more, and another for vpp=1"
        raise PlanError(f"pins schedule={schedule} and vpp={runs}", expected, "drop one of them")
    return runs


def check_pins(asked: PipelinePins, program: Program, cluster: Cluster) -> None:
    """Each stage has a segment and a device, all devices have a stage, micro-batches divide the batch."""
    segments, devices = len(program.segments), cluster.device_count
    if asked.stages is not None and asked.stages > min(segments, devices):
        raise PlanError(
            f"pin {asked.pp} for {counted(segments, 'layer')} on {counted(devices, 'device')}",
            f"at most {counted(min(segments, devices), 'stage')}: each has a layer and a device",
            "change the pin",
        )
    if asked.sizes is not None and sum(asked.sizes) != devices:
        raise PlanError(
            f"pin {asked.pp} on {counted(devices, 'device')}", f"numbers that sum to {devices}", "change the pin"
        )
    _check_axes(asked, devices)
    if asked.schedule == "interleaved" or (asked.runs or 1) > 1:
        _check_interleaved(asked, segments, devices)
    _check_microbatches(asked, program.batch)


def _check_axes(asked: PipelinePins, devices: int) -> None:
    """Stages have the devices of a mesh that is pinned, and of axes that are a multiple."""
    shape, stages = pinned_mesh(asked.rest), asked.stages or 2
    axes = {key: int(size) for key, size in map(pin_parts, asked.rest) if key in AXES}
    each = prod(axes.values() if shape is None else shape)
    if shape is None and any(size % each for size in asked.sizes or ()):
        raise _uneven(asked, [f"{axis}={size}" for axis, size in axes.items()], each, devices)
    if stages * each > devices or devices % each or (shape and asked.stages and stages * each < devices):
        count = stages if asked.stages else "two or more"
        needs = f"{count} stages of {each} each need {stages * each}"
        raise PlanError(
            f"no pipeline with {asked.text} on {counted(devices, 'device')}: "
            f"{needs if shape else f'{count} stages of a multiple of {each} each'}",
            f"stages that take {counted(devices, 'device')} together",
            "change the pins or the cluster",
        )
    if shape and asked.sizes and set(asked.sizes) != {each}:
        raise PlanError(
            f"pins {asked.text}", f"stages of {counted(each, 'device')}, which the mesh has", "change one of the pins"
        )


def _uneven(asked: PipelinePins, axes: Sequence[str], each: int, devices: int) -> PlanError:
    """Stages have sizes of their own, and one of them cannot have the axes."""
    count = min(len(asked.sizes or ()), devices // each)
    sizes = [each] * (count - 1) + [devices - each * (count - 1)]
    do = f", such as pp={'+'.join(map(str, sizes))}" if count > 1 and devices % each == 0 else ""
    return PlanError(
        f"no pipeline with {asked.text} on {counted(devices, 'device')}",
        f"for {' and '.join(axes)} a multiple of {each} devices on every stage{do}",
        "change one of the pins",
    )


def _check_interleaved(asked: PipelinePins, segments: int, devices: int) -> None:
    """Stages are equal, and each has several runs of segments."""
    stages, runs = asked.stages or 2, asked.runs or FEWEST_RUNS
    if segments < runs * stages:
        raise PlanError(
            f"no pipeline with {asked.text} for a model of {counted(segments, 'layer')}",
            f"at least {runs * stages} layers: each of {stages} stages has {runs} runs of them or more",
            f"ask for another schedule{', fewer stages' if stages > 2 else ''} or a model of more layers",
        )
    if len(set(asked.sizes or ())) > 1 or (asked.stages and devices % asked.stages):
        raise PlanError(
            f"no pipeline with {asked.text} on {counted(devices, 'device')}",
            "stages of as many devices each, which interleaved ones have",
            "change the stages, or ask for another schedule",
        )


def _check_microbatches(asked: PipelinePins, batch: int) -> None:
    for name, number in map(pin_parts, asked.rest):
        if name in ("microbatch", "microbatches") and is_whole(number):
            given = f"pin {name}={number} with a global batch of {batch}"
            check_cut(given, batch, int(number), "change the batch or the pin")


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
        found.beside(budget_bytes),
        "raise the memory limit, drop a pin or use more devices",
    )
