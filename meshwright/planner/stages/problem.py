"""StageProblem and StageSolution: the search for pipeline stages in numbers, without torch and Program.

A *stage* runs segments [first, end) on a submesh of some class. A StagePoint is one way to do so, with the layouts of
the boundary values at its two ends. Stages share the devices of each type.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from meshwright.errors import PlanError
from meshwright.schedule import ORDERS
from meshwright.simulate import SegmentCost, Timeline, Transfer


@dataclass(frozen=True, slots=True)
class MeshClass:
    """Equal submeshes: the number of devices of each type that one takes, and the memory of its smallest device."""

    name: str
    devices: tuple[int, ...]
    memory_bytes: int

    @property
    def ranks(self) -> int:
        return sum(self.devices)


@dataclass(frozen=True, slots=True)
class StagePoint:
    """A way to run a range of segments.

    enter, leave: boundary layouts at the two ends.
    choice: handed back to the caller.
    """

    cost: SegmentCost
    enter: Hashable = None
    leave: Hashable = None
    choice: object = None


@dataclass(frozen=True, slots=True)
class Crossing:
    """The messages of one micro-batch between two stages: values forward, gradients backward."""

    forward: Transfer
    backward: Transfer

    @property
    def seconds(self) -> float:
        return sum(transfer.seconds + transfer.latency_s for transfer in (self.forward, self.backward))


FREE = Crossing(Transfer(0.0), Transfer(0.0))


@dataclass(frozen=True, slots=True)
class StageProblem:
    """The space of pipelines to search.

    segments: of the chain.
    meshes: classes of submeshes.
    devices: number of each type.
    microbatches: numbers to try.
    schedules: names to try.
    later: schedules that the caller tries on the solution; here they count in the bound alone.
    most_stages, least_stages: limits.
    sizes: number of devices of each stage, if fixed.
    idle: devices may be left over.
    cuts: where a stage may begin or end, 0 and `segments` included; anywhere unless given.
    interleave: numbers of runs that a stage may have under `interleaved`.
    overlap: as in `Costs`.
    placed: messages between consecutive runs once all stages have devices; where it has none they are free.
    """

    segments: int
    meshes: tuple[MeshClass, ...]
    devices: tuple[int, ...]
    microbatches: tuple[int, ...]
    schedules: tuple[str, ...] = ("1f1b",)
    later: tuple[str, ...] = ()
    most_stages: int | None = None
    least_stages: int = 1
    sizes: tuple[int, ...] | None = None
    idle: bool = True
    cuts: tuple[int, ...] | None = None
    interleave: tuple[int, ...] = (2,)
    overlap: bool = False
    placed: Callable[[Sequence[PlacedRun], int], Sequence[Crossing | None]] | None = None

    @property
    def all_cuts(self) -> tuple[int, ...]:
        return tuple(range(self.segments + 1)) if self.cuts is None else self.cuts

    @property
    def stage_limit(self) -> int:
        """Upper bound on the number of stages."""
        runs = len(self.all_cuts) - 1
        least = min((mesh.ranks for mesh in self.meshes), default=1)
        found = min(runs, sum(self.devices) // max(1, least))
        return found if self.most_stages is None else min(found, self.most_stages)

    def verify(self) -> None:
        cuts = self.all_cuts
        if cuts[0] != 0 or cuts[-1] != self.segments or list(cuts) != sorted(set(cuts)):
            raise PlanError(f"cuts {list(cuts)}", f"rising from 0 to {self.segments}")
        for mesh in self.meshes:
            if len(mesh.devices) != len(self.devices) or not any(mesh.devices):
                raise PlanError(f"mesh {mesh.name} takes {mesh.devices}", f"devices of {len(self.devices)} types")
        unknown = [name for name in self.schedules if name not in ORDERS]
        if unknown or not self.schedules:
            raise PlanError(f"schedules {list(self.schedules)}", f"some of {', '.join(ORDERS)}")
        if not self.microbatches or min(self.microbatches) < 1:
            raise PlanError(f"micro-batches {list(self.microbatches)}", "numbers from 1 on")


@dataclass(frozen=True, slots=True)
class PlacedRun:
    """Segments [first, end) on a stage of a mesh class, run as a point says. An interleaved stage has several runs."""

    first: int
    end: int
    stage: int
    mesh: int
    point: StagePoint


Pipelined = tuple[tuple[PlacedRun, ...], str, int]
"""Runs, schedule, micro-batches."""


@dataclass(frozen=True, slots=True)
class StageSolution:
    """The best pipeline found.

    bound_s: lower bound on the step of all pipelines of the problem.
    proven: no pipeline of the problem is faster.
    others: candidates that were nearly as fast, one of each schedule first.
    promising: candidates that a searched schedule could make faster than this one.
    """

    runs: tuple[PlacedRun, ...]
    schedule: str
    microbatches: int
    timeline: Timeline
    bound_s: float
    proven: bool
    others: tuple[Pipelined, ...] = ()
    promising: tuple[Pipelined, ...] = ()

    @property
    def step_s(self) -> float:
        return self.timeline.step_s

    @property
    def gap(self) -> float:
        return max(0.0, 1.0 - self.bound_s / self.step_s) if self.step_s else 0.0
