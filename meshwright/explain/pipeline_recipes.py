"""Pipeline recipes: 1F1B over stages of equal devices and nearly equal work, with FSDP or tensor parallelism inside.

Everything is kept. Of the stages, only the cuts are searched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from meshwright.capture.averaging import comes_apart
from meshwright.capture.program import Program
from meshwright.cluster import Cluster
from meshwright.cluster.enumerate import per_host
from meshwright.cutting import cut_batch
from meshwright.errors import MeshwrightError, PlanError
from meshwright.explain.pace import is_host_bound
from meshwright.pins.parts import pin_parts
from meshwright.pins.stages import pipeline_pins
from meshwright.plan import Plan
from meshwright.planner.effort import ROUGH
from meshwright.planner.pipeline.balance import balanced_cuts
from meshwright.planner.pipeline.meshes import StageMesh, SubmeshLinks, stage_meshes
from meshwright.planner.pipeline.pins import check_pins
from meshwright.planner.pipeline.realize import ShardedRun, pipeline_plan
from meshwright.planner.pipeline.sharded_chains import FIRST, ShardedChain, sharded_chains
from meshwright.predict import predicted
from meshwright.predict.step import pipeline_predicted
from meshwright.price.parameter import Setting

PARTS = 4
"""Micro-batches for each stage that are tried first, where the batch has as many."""
MOST_STAGES = 16

DEGREES = ("pp=", "dp=", "tp=", "ep=")
"""Pins that a title names."""

UNEQUAL = "the devices make no equal stages"


@dataclass(frozen=True, slots=True)
class Baseline:
    """A recipe with its figures.

    pins: that give it.
    step_s, peak_bytes: None where it is impossible, which `why` then explains, or was not priced in time.
    host_bound: kernel launches set its pace.
    rough: the peak is the search's count, some percent off.
    """

    name: str
    pins: tuple[str, ...] = ()
    step_s: float | None = None
    peak_bytes: int | None = None
    fits: bool = False
    why: str = ""
    microbatches: int | None = None
    host_bound: bool = False
    rough: bool = False

    @property
    def title(self) -> str:
        """The name, with the degrees of parallelism at which it is fastest where there is a choice."""
        degrees = [text for text in self.pins if text.startswith(DEGREES) and not text.endswith("=1")]
        degrees = [f"pp={len(text.split('+'))}" if "+" in text else text for text in degrees]
        chosen = self.step_s is not None and any(not text.startswith("dp=") for text in degrees)
        return f"{self.name} ({' '.join(degrees)})" if chosen else self.name

    @property
    def as_plan(self) -> tuple[str, ...]:
        """Pins with which `meshwright plan` gives this recipe; none where there is no such plan."""
        if self.step_s is None or not self.pins:
            return ()
        own = [text for text in self.pins if not text.startswith(("mesh=", "microbatch")) or "x" in text]
        cut = [f"microbatch={self.microbatches}"] if self.microbatches else []
        keep = [] if any(text.startswith("recompute=") for text in own) else ["recompute=keep"]
        return (*own, *cut, *keep)

    @property
    def refusal(self) -> str:
        """Why there are no figures."""
        return f"not possible: {self.why}" if self.why else "not priced: the table's time is used up"


def pipelines(
    program: Program,
    cluster: Cluster,
    setting: Setting,
    limit: int,
    cut: tuple[str, ...] = (),
    may_go_on: Callable[[], bool] = lambda: True,
) -> list[Baseline]:
    """PP + FSDP and PP + TP, each at the best of a few numbers of stages.

    cut: a pinned number of micro-batches.
    may_go_on: asked before each; the rest is returned without figures once it says no.
    """
    made = _Recipes(program, cluster, setting, limit, cut)
    ways = {"PP + FSDP": ["tp=1", "zero=3"], "PP + TP": None}
    return [made.best(name, inside) if may_go_on() else Baseline(name) for name, inside in ways.items()]


class _Recipes:
    def __init__(self, program: Program, cluster: Cluster, setting: Setting, limit: int, cut: tuple[str, ...]) -> None:
        self.program, self.cluster, self.setting, self.limit, self.cut = program, cluster, setting, limit, cut
        self.submesh_links = SubmeshLinks(cluster)
        self._known: dict[tuple[StageMesh, Setting], list[ShardedChain]] = {}

    def best(self, name: str, inside: list[str] | None) -> Baseline:
        """The fastest pipeline that fits; else the one of the fewest bytes.

        inside: pins of every stage; None: the largest tensor-parallel degree within a host.
        """
        ways = [(stages, inside or self._with_tp(stages)) for stages in self._stages()]
        ways = [(stages, pins) for stages, pins in ways if pins]
        if not ways:
            return Baseline(name, why="one device shares with no other" if self.cluster.device_count == 1 else UNEQUAL)
        met: list[tuple[tuple[str, ...], Plan]] = []
        refused: list[str] = []
        for stages, pins in ways:
            met += self._hill_climb(stages, pins, refused)
        if not met:
            why = refused[-1] if refused else "micro-batches do not divide evenly over its data-parallel ranks"
            return Baseline(name, (f"pp={ways[0][0]}", "schedule=1f1b", *ways[0][1]), why=why)
        way, plan = self._best_of(met)
        made = plan.predicted
        layers = "+".join(str(stage.end - stage.first) for stage in plan.stages)
        figures = made.step_s, made.peak_bytes, made.peak_bytes <= self.limit
        rough = not self.setting.compile and made.peak_bytes <= self.limit
        return Baseline(
            name,
            (*way, f"layers={layers}"),
            *figures,
            microbatches=plan.microbatches,
            host_bound=is_host_bound(made),
            rough=rough,
        )

    def _best_of(self, met: list[tuple[tuple[str, ...], Plan]]) -> tuple[tuple[str, ...], Plan]:
        """The best by `_rank`. Plans slightly over the limit by the rough count are predicted exactly."""
        best = min(met, key=self._rank)
        near = [one for one in met if self.limit < one[1].predicted.peak_bytes <= self.limit * ROUGH]
        for way, plan in sorted(near, key=lambda one: one[1].predicted.step_s) if not self.setting.compile else ():
            if not self._rank(best)[0] and plan.predicted.step_s >= best[1].predicted.step_s:
                break
            exact = way, pipeline_predicted(plan, self.program)[0]
            if self._rank(exact) < self._rank(best):
                best = exact
        return best

    def _rank(self, one: tuple[tuple[str, ...], Plan]) -> tuple[bool, float]:
        """Sort key: plans that fit by step, then the others by bytes."""
        made = one[1].predicted
        fits = made.peak_bytes <= self.limit
        return not fits, made.step_s if fits else made.peak_bytes

    def _hill_climb(self, stages: int, pins: list[str], refused: list[str]) -> list[tuple[tuple[str, ...], Plan]]:
        """Hill climbing over micro-batch counts, from PARTS for each stage to more, or to fewer where more do not help.

        refused: receives the reasons of pipelines that are impossible.
        """
        numbers = self._numbers(stages, pins)
        start = max((at for at, number in enumerate(numbers) if number <= PARTS * stages), default=0)
        pp = "+".join([str(self.cluster.device_count // stages)] * stages)
        met: list[tuple[tuple[str, ...], Plan]] = []
        for step, at in ((1, start), (-1, start - 1)):
            if step < 0 and len(met) > 1 and min(met, key=self._rank) is not met[0]:
                break  # more are better
            while 0 <= at < len(numbers):
                way = (f"pp={pp}", "schedule=1f1b", f"microbatches={numbers[at]}", *pins)
                best, at = min(map(self._rank, met), default=None), at + step
                try:
                    met.append((way, self._plan(way)))
                except PlanError as error:
                    refused.append(error.given)
                    continue
                except MeshwrightError:
                    continue
                if best is not None and self._rank(met[-1]) >= best:
                    break
                if step > 0:
                    at = self._next_that_may_fit(met, numbers, at)
        return met

    def _next_that_may_fit(self, met: list[tuple[tuple[str, ...], Plan]], numbers: list[int], at: int) -> int:
        """The next number of micro-batches. Where the last two do not fit, the first that fits by extrapolation.

        Peaks are taken to be a constant plus a part inverse to the number.
        """
        if len(met) < 2 or any(plan.predicted.peak_bytes <= self.limit for _, plan in met[-2:]):
            return at
        (few, more), (most, least) = ((plan.microbatches, plan.predicted.peak_bytes) for _, plan in met[-2:])
        shrinking = (more - least) / (1 / few - 1 / most)
        fixed = least - shrinking / most
        return next((n for n in range(at, len(numbers)) if fixed + shrinking / numbers[n] <= self.limit), len(numbers))

    def _stages(self) -> Iterator[int]:
        """Numbers of stages: 2 and 4 on one host; on several the number of hosts, and half of it."""
        devices, inner = self.cluster.device_count, per_host(self.cluster)
        most = min(MOST_STAGES, devices // inner)
        for stages in dict.fromkeys((2, 4) if devices == inner else (most, most // 2)):
            if 1 < stages <= len(self.program.segments) and devices % stages == 0:
                yield stages

    def _numbers(self, stages: int, pins: list[str]) -> list[int]:
        """Numbers of micro-batches that give every data-parallel rank equal samples."""
        batch, whole = self.program.batch, self.program.couples_samples or not comes_apart(self.program)
        ranks = self.cluster.device_count // stages // int(pins[0].removeprefix("tp="))
        if self.cut or whole:
            number = int(pin_parts(self.cut[0])[1]) if self.cut else 1
            return [number] if all(samples % ranks == 0 for samples in cut_batch(batch, number)) else []
        return [n for n in range(1, batch + 1) if batch % n == 0 and batch // n % ranks == 0]

    def _with_tp(self, stages: int) -> list[str]:
        each, inner = self.cluster.device_count // stages, per_host(self.cluster)
        degrees = [size for size in (8, 4, 2) if each % size == 0 and inner % size == 0]
        return [f"tp={degrees[0]}", "zero=0"] if degrees else []

    def _plan(self, way: tuple[str, ...]) -> Plan:
        """The pipeline whose stages run the fastest chain on their devices, with cuts that balance their seconds."""
        program, pins = self.program, pipeline_pins(way)
        check_pins(pins, program, self.cluster)
        stages = pins.stages or 1
        found = stage_meshes(self.cluster, pins.rest, None, sizes=[self.cluster.device_count // stages])
        number = next((mesh.pins.microbatches for mesh in found if mesh.pins.microbatches), None) or 1
        setting = self.setting.cut(program.batch, number)
        chosen = [self._chosen(found, stage, stages, setting) for stage in range(stages)]
        work = chosen[0][1].figures[0, :, :FIRST].sum(axis=1)
        ends = balanced_cuts([float(one) for one in work], stages)
        firsts = (0, *ends[:-1])
        parts = [ShardedRun(a, b, k, *chosen[k]) for k, (a, b) in enumerate(zip(firsts, ends, strict=True))]
        plan = pipeline_plan(program, self.cluster, parts, "1f1b", setting, self.submesh_links)
        if setting.compile:
            return predicted(replace(plan, compile=True), program)
        return pipeline_predicted(plan, program, exact=False)[0]

    def _chosen(
        self, found: list[StageMesh], stage: int, stages: int, setting: Setting
    ) -> tuple[StageMesh, ShardedChain]:
        """The fastest chain of a stage, on the meshes of fewest axes of its type of devices."""
        names, size = self.cluster.device_names(), self.cluster.device_count // stages
        kinds = set(names[stage * size : (stage + 1) * size])
        kind = kinds.pop() if len(kinds) == 1 else None
        own = [mesh for mesh in found if mesh.place[1] == kind]
        fewest = min((len(mesh.mesh.axes) for mesh in own), default=0)
        made = [
            (mesh, sharded) for mesh in own if len(mesh.mesh.axes) == fewest for sharded in self._chains(mesh, setting)
        ]
        if not made:
            raise PlanError(UNEQUAL, "stages of equal devices that the batch divides")
        return min(made, key=lambda one: one[1].step_s)

    def _chains(self, mesh: StageMesh, setting: Setting) -> list[ShardedChain]:
        """The fastest chains on a mesh, shared by stages on meshes of one class."""
        key = (mesh, setting)
        if key not in self._known:
            self._known[key] = sharded_chains(self.program, 0, mesh, setting, recompute=False, most_s=0.0)
        return self._known[key]
