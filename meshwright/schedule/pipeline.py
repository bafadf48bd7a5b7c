"""What a pipeline is made of: runs of segments on stages, micro-batches, and which values cross between stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meshwright.errors import PlanError

Reads = tuple[tuple[int, int], ...]
"""(the segment that made a value, a segment that reads it), every pair."""


@dataclass(frozen=True, slots=True)
class Run:
    """Segments [first, end), on one stage."""

    first: int
    end: int
    stage: int

    @property
    def segments(self) -> range:
        return range(self.first, self.end)


@dataclass(frozen=True, slots=True)
class Hop:
    """A value on its way: made by a segment, sent from one stage to another."""

    segment: int
    source: int
    target: int


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Runs in chain order; a stage that owns several is interleaved.

    reads: who reads whose values; each segment those of the one before unless given. routed_via_stages: segments whose
    values go from stage to stage on their way to a far reader; the others are sent directly. gathered, regathered: as
    for one stage. recomputed: segments that have a recomputation before their backward.
    """

    runs: tuple[Run, ...]
    microbatches: int
    reads: Reads | None = None
    routed_via_stages: frozenset[int] = frozenset()
    gathered: frozenset[int] = frozenset()
    regathered: frozenset[int] = frozenset()
    recomputed: frozenset[int] = frozenset()

    @property
    def stages(self) -> int:
        return 1 + max(run.stage for run in self.runs)

    @property
    def segments(self) -> int:
        return self.runs[-1].end

    def runs_of(self, stage: int) -> tuple[int, ...]:
        """Positions in `runs`, in chain order."""
        return tuple(index for index, run in enumerate(self.runs) if run.stage == stage)

    def run_of(self, segment: int) -> int:
        return next(index for index, run in enumerate(self.runs) if segment < run.end)

    def all_reads(self) -> Reads:
        return tuple((i, i + 1) for i in range(self.segments - 1)) if self.reads is None else self.reads

    def hops(self) -> tuple[Hop, ...]:
        """Every transfer of one micro-batch's forward; gradients take the same ways back."""
        stage_of = [run.stage for run in self.runs for _ in run.segments]
        readers: dict[int, list[int]] = {}
        for producer, reader in self.all_reads():
            readers.setdefault(producer, []).append(reader)
        found: list[Hop] = []
        for producer, who in sorted(readers.items()):
            if producer in self.routed_via_stages:
                way = [stage_of[segment] for segment in range(producer, max(who) + 1)]
            else:
                way = [stage_of[producer], *(stage_of[segment] for segment in sorted(who))]
            have, at = {way[0]}, way[0]
            for stage in way[1:]:
                if stage not in have:
                    found.append(Hop(producer, at if producer in self.routed_via_stages else way[0], stage))
                    have.add(stage)
                    at = stage
        return tuple(found)

    def verify(self) -> None:
        ends = [run.end for run in self.runs]
        if not self.runs or [run.first for run in self.runs] != [0, *ends[:-1]]:
            raise PlanError(f"runs {[(run.first, run.end) for run in self.runs]}", "runs that tile the chain")
        if any(run.end <= run.first for run in self.runs):
            raise PlanError(f"runs {[(run.first, run.end) for run in self.runs]}", "a layer in each")
        if {run.stage for run in self.runs} != set(range(self.stages)):
            raise PlanError(f"runs on stages {sorted({run.stage for run in self.runs})}", "stages 0, 1, 2, ...")
        if self.microbatches < 1:
            raise PlanError(f"{self.microbatches} micro-batches", "1 or more")
        _check_pairs(self.reads)
        for producer, reader in self.all_reads():
            if not 0 <= producer < reader < self.segments:
                raise PlanError(f"layer {reader} reads what {producer} makes", "what a layer before it makes")


def _check_pairs(reads: object) -> None:
    if reads is not None and not (isinstance(reads, Sequence) and all(map(_is_pair, reads))):
        raise PlanError(
            f"reads={reads!r}",
            "pairs (a layer, one that reads what it makes)",
            "write reads=((0, 1), (1, 2), (0, 2)), every pair of them",
        )


def _is_pair(given: object) -> bool:
    return isinstance(given, tuple | list) and len(given) == 2 and all(isinstance(one, int) for one in given)


def pipeline(cuts: Sequence[int], microbatches: int, stages: int | None = None, **options: object) -> Pipeline:
    """Runs that end at `cuts`, the last of which is the number of segments, dealt round to so many stages.

    options: `reads`, every pair (a segment, one that reads what it makes), and the others of a Pipeline."""
    count = len(cuts) if stages is None else stages
    if count < 1 or len(cuts) % count:
        raise PlanError(f"{len(cuts)} runs for {count} stages", "the same number of runs for each stage")
    firsts = (0, *cuts[:-1])
    runs = tuple(Run(a, b, i % count) for i, (a, b) in enumerate(zip(firsts, cuts, strict=True)))
    found = Pipeline(runs, microbatches, **options)  # type: ignore[arg-type]
    found.verify()
    return found
