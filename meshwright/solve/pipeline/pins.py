"""Pins that speak of stages: what they ask for, and whether a cluster and a program can have it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from meshwright.capture.program import Program
from meshwright.cluster import Cluster
from meshwright.errors import PlanError
from meshwright.plan.cutting import check_cut
from meshwright.plan.units import show_bytes
from meshwright.schedule import ORDERS
from meshwright.solve.least import Smallest


@dataclass(frozen=True, slots=True)
class PipelinePins:
    """What pins say of stages: `pp=K`, or `pp=2+2+4` with their devices; `schedule=NAME`; and the rest, which speak of
    each stage's own mesh."""

    stages: int | None
    schedule: str | None
    rest: tuple[str, ...]
    sizes: tuple[int, ...] | None = None

    @property
    def one_stage(self) -> bool:
        """No pipeline is wanted: pins that speak of a mesh mean that of all devices, unless stages are pinned too."""
        if self.stages is not None or self.schedule is not None:
            return self.stages == 1 or self.schedule == "one-stage"
        return any(text.partition("=")[0] not in ("microbatch", "microbatches") for text in self.rest)

    @property
    def pipeline(self) -> bool:
        """Nothing but a pipeline is wanted."""
        return not self.one_stage and (self.stages is not None or self.schedule is not None)


def pipeline_pins(texts: Sequence[str]) -> PipelinePins:
    given: dict[str, str] = {}
    for key, _, value in (text.partition("=") for text in texts):
        if key in ("pp", "schedule") and given.setdefault(key, value) != value:
            raise PlanError(f"pins {key}={given[key]} and {key}={value}", f"one {key}", "drop one of them")
    stages, schedule = given.get("pp"), given.get("schedule")
    parts = stages.split("+") if stages is not None else []
    if not all(part.isdigit() and int(part) for part in parts):
        raise PlanError(f"pin pp={stages}", "a number of stages, or their devices such as pp=2+2+4", "correct the pin")
    if schedule is not None and schedule not in (*ORDERS, "searched", "one-stage"):
        raise PlanError(f"pin schedule={schedule}", f"one of {', '.join(ORDERS)}, searched", "correct the pin")
    if parts == ["1"] and schedule not in (None, "one-stage"):
        raise PlanError(f"pins pp=1 and schedule={schedule}", "a schedule where there are stages", "drop one of them")
    rest = tuple(text for text in texts if text.partition("=")[0] not in ("pp", "schedule"))
    if len(parts) > 1:
        return PipelinePins(len(parts), schedule, rest, tuple(map(int, parts)))
    return PipelinePins(int(parts[0]) if parts else None, schedule, rest)


def check_pins(asked: PipelinePins, program: Program, cluster: Cluster) -> None:
    """Each stage has a segment and a device, all devices have a stage, micro-batches divide the batch."""
    if asked.stages is not None and asked.stages > min(len(program.segments), cluster.device_count):
        raise PlanError(
            f"pin pp={asked.stages} for {len(program.segments)} segments on {cluster.device_count} devices",
            f"at most {min(len(program.segments), cluster.device_count)} stages: each has a segment and a device",
            "change the pin",
        )
    if asked.sizes is not None and sum(asked.sizes) != cluster.device_count:
        raise PlanError(
            f"pin pp={'+'.join(map(str, asked.sizes))} on {cluster.device_count} devices",
            f"numbers that sum to {cluster.device_count}",
            "change the pin",
        )
    _check_microbatches(asked, program.batch)


def _check_microbatches(asked: PipelinePins, batch: int) -> None:
    for name, _, number in (text.partition("=") for text in asked.rest):
        if name in ("microbatch", "microbatches") and number.isdigit():
            given = f"pin {name}={number} with a global batch of {batch}"
            check_cut(given, batch, int(number), "change the batch or the pin")


def no_pipeline(
    asked: PipelinePins, cluster: Cluster, budget_bytes: int, least: Callable[[], Smallest | None]
) -> PlanError:
    """Where nothing but a pipeline was wanted: there are not the devices, or not the memory. least: that does."""
    wanted = [f"pp={asked.stages}"] if asked.stages else []
    wanted += [f"schedule={asked.schedule}"] if asked.schedule else []
    given, devices = ", ".join((*wanted, *asked.rest)), cluster.device_count
    axes = {key: int(size) for key, _, size in (text.partition("=") for text in asked.rest) if key in ("dp", "tp")}
    each, stages = prod(axes.values()), asked.stages or 2
    if stages * each > devices or devices % each:
        return PlanError(
            f"no pipeline with {given} on {devices} devices: {stages} stages of a multiple of {each} each",
            f"stages that take {devices} devices together",
            "change the pins or the cluster",
        )
    found = least()
    return PlanError(
        f"no pipeline with {given} fits on {cluster.name} in {budget_bytes:,} bytes ({show_bytes(budget_bytes)}) "
        "per device",
        found.beside(budget_bytes) if found else "pins and a batch that some stages can have",
        f"{'raise the memory limit, ' if found else ''}drop a pin or use more devices",
    )
