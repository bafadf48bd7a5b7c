from __future__ import annotations

import random
from collections.abc import Hashable, Iterator
from itertools import product

import pytest

from meshwright.errors import PlanError
from meshwright.simulate import SegmentCost, Transfer
from meshwright.solve.stages import solve_stages
from meshwright.solve.stages_price import price_pipeline
from meshwright.solve.stages_problem import Crossing, MeshClass, PlacedRun, StagePoint, StageProblem

SCHEDULES = ("1f1b", "gpipe", "zero-bubble")


def random_problem(seed: int) -> StageProblem:
    """Three or four segments, one or two device types, two submesh sizes, two points, and costs that differ."""
    dice = random.Random(seed)
    segments = dice.choice((2, 3, 3, 3)) if seed < 300 else 4
    types = dice.choice((1, 1, 2))
    speed = [dice.uniform(0.6, 1.6) for _ in range(types)]
    memory = [dice.randint(60, 200) for _ in range(types)]
    meshes = tuple(
        MeshClass(f"{size} of {kind}", tuple(size if i == kind else 0 for i in range(types)), memory[kind])
        for kind in range(types)
        for size in ((1, 2) if types == 1 else (1,))
    )
    work = [dice.uniform(0.5, 2.0) for _ in range(segments)]
    weights = [dice.randint(2, 30) for _ in range(segments)]
    kept = [dice.randint(1, 20) for _ in range(segments)]
    layouts = ("a", "b") if dice.random() < 0.3 else ("a",)
    points = {}
    for first in range(segments):
        for end in range(first + 1, segments + 1):
            for mesh, made in enumerate(meshes):
                kind = next(i for i, count in enumerate(made.devices) if count)
                seconds = sum(work[first:end]) / speed[kind] / made.ranks ** dice.uniform(0.7, 1.0)
                points[first, end, mesh] = [
                    StagePoint(
                        SegmentCost(
                            seconds * slower,
                            seconds * slower,
                            seconds * dice.uniform(0.7, 1.2),
                            first_s=dice.choice((0.0, 0.2)),
                            last_s=dice.choice((0.0, 0.3)),
                            step_s=0.1,
                            static_bytes=sum(weights[first:end]) // made.ranks,
                            resident_bytes=int(sum(kept[first:end]) * less) // made.ranks,
                            forward_transient_bytes=dice.randint(0, 5),
                            backward_transient_bytes=dice.randint(0, 9),
                        ),
                        enter=dice.choice(layouts),
                        leave=dice.choice(layouts),
                    )
                    for slower, less in ((1.0, 1.0), (1.3, 0.3))
                ]
    wire = {key: dice.uniform(0.0, 0.4) for key in product(range(len(meshes)), range(len(meshes)), (True, False))}

    def crossing(end: int, source: int, leave: Hashable, target: int, enter: Hashable, microbatches: int) -> Crossing:
        seconds = wire[source, target, leave == enter] * (1 + 0.2 * end) / microbatches
        return Crossing(Transfer(seconds, 0.01, 2, 3), Transfer(seconds, 0.0, 1, 1))

    return StageProblem(
        segments,
        meshes,
        tuple(dice.randint(1, 3) for _ in range(types)),
        lambda first, end, mesh, _: points[first, end, mesh],
        crossing,
        microbatches=(dice.randint(1, 2), dice.randint(3, 5)),
        schedules=tuple(dice.sample(SCHEDULES, 2)),
    )


def every_pipeline(problem: StageProblem) -> Iterator[tuple[PlacedRun, ...]]:
    """All partitions, all submeshes that the devices are enough for, all points; no bound, no dynamic programming."""

    def extend(
        first: int, left: tuple[int, ...], before: tuple[PlacedRun, ...], count: int
    ) -> Iterator[tuple[PlacedRun, ...]]:
        if first == problem.segments:
            yield before
            return
        for end in range(first + 1, problem.segments + 1):
            for mesh, made in enumerate(problem.meshes):
                rest = tuple(have - want for have, want in zip(left, made.devices, strict=True))
                if min(rest) < 0:
                    continue
                for point in problem.points(first, end, mesh, count):
                    run = PlacedRun(first, end, len(before), mesh, point)
                    yield from extend(end, rest, (*before, run), count)

    yield from extend(0, problem.devices, (), problem.microbatches[0])


def brute_force(problem: StageProblem) -> float:
    best_s = float("inf")
    for runs in every_pipeline(problem):
        for schedule in problem.schedules:
            for count in problem.microbatches:
                found = price_pipeline(problem, runs, schedule, count)
                if found is not None:
                    best_s = min(best_s, found.step_s)
    return best_s


@pytest.mark.parametrize("block", range(10))
def test_brute_force_by_the_simulator_finds_nothing_better(block: int) -> None:
    for seed in range(30 * block, 30 * block + 30):
        problem = random_problem(seed)
        expected = brute_force(problem)
        if expected == float("inf"):
            with pytest.raises(PlanError, match="no pipeline"):
                solve_stages(problem, budget=10**9)
            continue
        found = solve_stages(problem, budget=10**9)
        assert found is not None
        assert found.step_s == pytest.approx(expected, rel=1e-9), seed
        assert found.proven
        assert found.bound_s <= expected * (1 + 1e-9)
