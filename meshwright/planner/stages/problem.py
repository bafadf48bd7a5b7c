"""What a pipeline is chosen from and what was chosen: numbers only, no torch and no Program.

A *stage* runs segments [first, end) on a submesh of some class; a StagePoint is one way to do so, with the layouts
in which it takes and hands over the boundary. Stages take devices from what there is of each type.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from meshwright.errors import PlanError
from meshwright.schedule import ORDERS
from meshwright.simulate import SegmentCost, Timeline, Transfer


@dataclass(frozen=True, slots=True)
class MeshClass:
    """Submeshes that are alike: how many devices of each type one takes, and the memory of its smallest device."""

    name: str
    devices: tuple[int, ...]
    memory_bytes: int

    @property
    def ranks(self) -> int:
        return sum(self.devices)


@dataclass(frozen=True, slots=True)
class StagePoint:
    """A way to run a range of segments. choice: whatever the caller wants back."""

    cost: SegmentCost
    enter: Hashable = None
    leave: Hashable = None
    choice: object = None


@dataclass(frozen=True, slots=True)
class Crossing:
    """What it takes to hand a micro-batch from one stage to the next, and its gradient back."""

    forward: Transfer
    backward: Transfer

    @property
    def seconds(self) -> float:
        return sum(transfer.seconds + transfer.latency_s for transfer in (self.forward, self.backward))


Points = Callable[[int, int, int, int], Sequence[StagePoint]]
"""(first, end, mesh class, micro-batches) -> ways to run these segments there; none if it cannot be done."""

Crossings = Callable[[int, int, Hashable, int, Hashable, int], Crossing]
"""(end of the first stage, its mesh class and layout, those of the second, micro-batches)."""


@dataclass(frozen=True, slots=True)
class StageProblem:
    """cuts: where a stage may begin or end, 0 and `segments` among them; anywhere unless given. later: schedules that
    the caller tries on what is found; here they count in the bound alone. interleave: how many runs a stage may have
    under `interleaved`, besides one. overlap: as in `Costs`. sizes: how many devices each stage has, if fixed. idle:
    devices may be left over.
    placed: what handing over from each run to the next takes once all stages have their devices, for so many
    micro-batches; as `crossing` says if None."""

    segments: int
    meshes: tuple[MeshClass, ...]
    devices: tuple[int, ...]
    points: Points
    crossing: Crossings
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
        """No pipeline has more stages than this."""
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
        unknown = [name for name in self.schedules if name not in (*ORDERS, "searched")]
        if unknown or not self.schedules:
            raise PlanError(f"schedules {list(self.schedules)}", f"some of {', '.join(ORDERS)}, searched")
        if not self.microbatches or min(self.microbatches) < 1:
            raise PlanError(f"micro-batches {list(self.microbatches)}", "numbers from 1 on")


@dataclass(frozen=True, slots=True)
class PlacedRun:
    """Segments [first, end) on a stage of this mesh class, by this point. A stage with several runs is interleaved."""

    first: int
    end: int
    stage: int
    mesh: int
    point: StagePoint


Pipelined = tuple[tuple[PlacedRun, ...], str, int]
"""Runs, schedule, micro-batches."""


@dataclass(frozen=True, slots=True)
class StageSolution:
    """The best pipeline found. bound_s: none of the space searched is faster; proven: this one is as fast as any.

    simulated: how many candidates were. others: those that were nearly as fast, one of each schedule first. promising:
    those that a schedule of their own could make faster than this one.
    """

    runs: tuple[PlacedRun, ...]
    schedule: str
    microbatches: int
    timeline: Timeline
    bound_s: float
    proven: bool
    simulated: int
    others: tuple[Pipelined, ...] = ()
    promising: tuple[Pipelined, ...] = ()

    @property
    def step_s(self) -> float:
        return self.timeline.step_s

    @property
    def gap(self) -> float:
        return max(0.0, 1.0 - self.bound_s / self.step_s) if self.step_s else 0.0
