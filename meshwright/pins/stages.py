"""Pins that speak of stages: what they ask for, and whether so many devices can have it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from meshwright.errors import PlanError, counted
from meshwright.pins.parts import AXES, pin_parts, pinned_mesh
from meshwright.sizes import is_whole

SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero-bubble", "searched")
"""Of plans of several stages; those of one are `one-stage`."""
STAGED = ("pp", "layers", "schedule", "vpp")
"""Pins that speak of stages."""


@dataclass(frozen=True, slots=True)
class PipelinePins:
    """What pins say of stages: `pp=K`, or `pp=2+2+4` with their devices; `layers=9+17`, the layers of each;
    `schedule=NAME`; `vpp=V` runs of segments a stage; and the rest, which speak of each stage's own mesh."""

    stages: int | None
    schedule: str | None
    rest: tuple[str, ...]
    sizes: tuple[int, ...] | None = None
    runs: int | None = None
    layers: tuple[int, ...] | None = None

    @property
    def pp(self) -> str:
        """The pin of stages as it is written."""
        return f"pp={'+'.join(map(str, self.sizes)) if self.sizes else self.stages}" if self.stages else ""

    @property
    def text(self) -> str:
        """All of them."""
        schedule = f"schedule={self.schedule}" if self.schedule else ""
        runs = f"vpp={self.runs}" if self.runs else ""
        layers = f"layers={'+'.join(map(str, self.layers))}" if self.layers else ""
        return ", ".join(text for text in (self.pp, layers, schedule, runs, *self.rest) if text)

    @property
    def one_stage(self) -> bool:
        """No pipeline is wanted: pins that speak of a mesh mean that of all devices, unless stages are pinned too."""
        if self.stages is not None or self.schedule is not None or (self.runs or 1) > 1:
            return self.stages == 1 or self.schedule == "one-stage"
        return any(pin_parts(text)[0] not in ("microbatch", "microbatches") for text in self.rest)

    @property
    def interleaved(self) -> bool:
        return self.schedule == "interleaved" or (self.runs or 1) > 1

    @property
    def pipeline(self) -> bool:
        """Nothing but a pipeline is wanted."""
        named = self.stages is not None or self.schedule is not None or (self.runs or 1) > 1
        return not self.one_stage and named


def pipeline_pins(texts: Sequence[str]) -> PipelinePins:
    given: dict[str, str] = {}
    for key, value in map(pin_parts, texts):
        if key in STAGED:
            given[key] = value
    stages, schedule = given.get("pp"), given.get("schedule")
    parts = stages.split("+") if stages is not None else []
    if not all(map(is_whole, parts)):
        raise PlanError(f"pin pp={stages}", "a number of stages, or their devices such as pp=2+2+4", "correct the pin")
    if schedule is not None and schedule not in (*SCHEDULES, "one-stage"):
        raise PlanError(f"pin schedule={schedule}", f"one of {', '.join(SCHEDULES)}", "correct the pin")
    if parts == ["1"] and schedule not in (None, "one-stage"):
        raise PlanError(f"pins pp=1 and schedule={schedule}", "a schedule where there are stages", "drop one of them")
    runs = _runs(given)
    rest = tuple(text for text in texts if pin_parts(text)[0] not in STAGED)
    sizes = tuple(map(int, parts)) if len(parts) > 1 else None
    count = len(sizes) if sizes else int(parts[0]) if parts else None
    layers = _layers(given, count)
    return PipelinePins(len(layers) if layers else count, schedule, rest, sizes, runs, layers)


def _layers(given: Mapping[str, str], stages: int | None) -> tuple[int, ...] | None:
    """Of a `layers` pin: how many each stage has."""
    if "layers" not in given:
        return None
    text = f"layers={given['layers']}"
    parts = given["layers"].split("+")
    if not all(map(is_whole, parts)) or len(parts) < 2:
        raise PlanError(f"pin {text}", "how many layers each stage has, such as layers=9+17", "correct the pin")
    if stages not in (None, len(parts)):
        raise PlanError(f"pins pp={given['pp']} and {text}", "layers for each of the stages", "change one of the pins")
    if given.get("schedule") == "interleaved" or given.get("vpp", "1") != "1":
        raise PlanError(f"pin {text} under an interleaved schedule", "one run of layers a stage", "drop one of them")
    return tuple(map(int, parts))


def _runs(given: Mapping[str, str]) -> int | None:
    """Of a `vpp` pin. Several runs a stage are an interleaved schedule, one run is any other."""
    if "vpp" not in given:
        return None
    runs, schedule = int(given["vpp"]), given.get("schedule")
    if runs > 1 and given.get("pp") == "1":
        raise PlanError(f"pins pp=1 and vpp={runs}", "vpp where there are stages", "drop one of them")
    if schedule is not None:
        check_runs(runs, schedule)
    return runs


def check_runs(runs: int, schedule: str) -> None:
    """Whether stages may have so many runs under a schedule."""
    if (schedule == "interleaved") != (runs > 1):
        expected = "schedule=interleaved for vpp=2 or more, and another for vpp=1"
        raise PlanError(f"pins schedule={schedule} and vpp={runs}", expected, "drop one of them")


def check_stages(asked: PipelinePins, devices: int) -> None:
    """Each stage has a device, and all devices have a stage; stages have the axes that are pinned."""
    if asked.stages is not None and asked.stages > devices:
        expected = f"at most {counted(devices, 'stage')}: each has a device"
        raise PlanError(f"pin {asked.pp} on {counted(devices, 'device')}", expected, "change the pin")
    if asked.sizes is not None and sum(asked.sizes) != devices:
        raise PlanError(
            f"pin {asked.pp} on {counted(devices, 'device')}", f"numbers that sum to {devices}", "change the pin"
        )
    _check_axes(asked, devices)
    uneven = len(set(asked.sizes or ())) > 1 or (asked.stages and devices % asked.stages)
    if asked.interleaved and uneven:
        raise PlanError(
            f"no pipeline with {asked.text} on {counted(devices, 'device')}",
            "stages of as many devices each, which interleaved ones have",
            "change the stages, or ask for another schedule",
        )


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
