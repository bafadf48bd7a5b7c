from __future__ import annotations

import random
import sys
from collections.abc import Hashable, Iterator
from dataclasses import replace
from itertools import combinations, islice, pairwise, product
from pathlib import Path

import pytest

from meshwright.errors import PlanError
from meshwright.planner.stages.bound import Bound, kept_numbers
from meshwright.planner.stages.interleaved import Interleaved, interleavings
from meshwright.planner.stages.price import pipeline_costs, price_pipeline
from meshwright.planner.stages.problem import Crossing, MeshClass, PlacedRun, StagePoint
from meshwright.schedule import Durations, Pipeline, Run, lists, searched
from meshwright.simulate import SegmentCost, Timeline, Transfer, simulate

sys.path.append(str(Path(__file__).parents[2] / "bench"))
from stage_rows import ListedProblem, listed_rows, solve

SCHEDULES = ("1f1b", "gpipe", "zero-bubble")


def random_problem(seed: int) -> ListedProblem:
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
                            gather_params_s=dice.choice((0.0, 0.2)),
                            reduce_grads_s=dice.choice((0.0, 0.3)),
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

    return ListedProblem(
        segments,
        meshes,
        tuple(dice.randint(1, 3) for _ in range(types)),
        points=lambda first, end, mesh, _: points[first, end, mesh],
        crossing=crossing,
        microbatches=(dice.randint(1, 2), dice.randint(3, 5)),
        schedules=tuple(dice.sample(SCHEDULES, 2)),
    )


def every_pipeline(problem: ListedProblem) -> Iterator[tuple[PlacedRun, ...]]:
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


def brute_force(problem: ListedProblem) -> float:
    best_s = float("inf")
    for runs in every_pipeline(problem):
        for schedule in problem.schedules:
            for count in problem.microbatches:
                found = price_pipeline(problem, runs, schedule, count)
                if found is not None:
                    best_s = min(best_s, found.step_s)
    return best_s


@pytest.mark.parametrize("block", [0, *(pytest.param(block, marks=pytest.mark.full) for block in range(1, 10))])
def test_brute_force_by_the_simulator_finds_nothing_better(block: int) -> None:
    for seed in range(30 * block, 30 * block + 30):
        problem = random_problem(seed)
        expected = brute_force(problem)
        if expected == float("inf"):
            with pytest.raises(PlanError, match="no pipeline"):
                solve(problem, budget=10**9)
            continue
        found = solve(problem, budget=10**9)
        assert found is not None
        assert found.step_s == pytest.approx(expected, rel=1e-9), seed
        assert found.proven
        assert found.bound_s <= expected * (1 + 1e-9)


def test_numbers_of_stages_that_memory_leaves_are_the_same_from_both_ends() -> None:
    """From the end each number has tables of its own; from the front one pass is enough for many of them."""
    some = 0
    for problem in map(random_problem, range(60)):
        for count in problem.microbatches:
            rows = listed_rows(problem, count)
            if rows is None:
                continue
            bound = Bound(problem, rows, "zero-bubble", count)
            for limit_s in (bound.least_s * slack for slack in (1.0, 1.3, 2.0, 3.0)):
                tables, possible = bound.tables(limit_s, problem.stage_limit)
                each = [number for number in possible if number in bound.tables(limit_s, number, number)[1]]
                assert list(kept_numbers(bound, limit_s, tables, possible)) == each
                assert bound.possible(limit_s) == bool(each)
                some += len(each)
    assert some > 50


@pytest.mark.full
@pytest.mark.parametrize("block", range(4))
def test_brute_force_on_four_segments(block: int) -> None:
    for seed in range(300 + 10 * block, 310 + 10 * block):
        problem = random_problem(seed)
        expected = brute_force(problem)
        if expected < float("inf"):
            found = solve(problem, budget=10**9)
            assert found is not None
            assert found.step_s == pytest.approx(expected, rel=1e-9), seed


def simple(
    segments: int, devices: tuple[int, ...], speeds: tuple[float, ...], microbatches: tuple[int, ...], **options: object
) -> ListedProblem:
    """One device a stage, devices that differ in speed, a second of work for each segment and micro-batch of 16."""
    types = range(len(speeds))
    meshes = tuple(MeshClass(f"type {i}", tuple(int(i == j) for j in types), 10**9) for i in types)

    def points(first: int, end: int, mesh: int, count: int) -> list[StagePoint]:
        seconds = (end - first) / speeds[mesh] * 16 / count / 3
        return [
            StagePoint(SegmentCost(seconds, seconds, seconds, static_bytes=end - first, resident_bytes=end - first))
        ]

    return ListedProblem(segments, meshes, devices, microbatches, points=points, **options)  # type: ignore[arg-type]


def test_equal_stages_meet_the_bound() -> None:
    found = solve(simple(12, (4,), (1.0,), (16,)))
    assert found is not None
    assert [run.end - run.first for run in found.runs] == [3, 3, 3, 3]
    assert found.step_s == pytest.approx(3 * (16 + 3))
    assert found.proven
    assert found.gap == 0.0


def test_load_is_balanced_by_speed() -> None:
    """Two devices of which one is three times as fast: it gets three times the segments, or nearly."""
    found = solve(simple(16, (1, 1), (3.0, 1.0), (64,)))
    assert found is not None
    shares = {run.mesh: run.end - run.first for run in found.runs}
    assert shares == {0: 12, 1: 4}


def test_more_micro_batches_win_until_handing_over_costs_more() -> None:
    few = solve(simple(4, (4,), (1.0,), (1, 2, 4, 8, 16, 32)))
    assert few is not None
    assert few.microbatches == 32
    problem = simple(4, (4,), (1.0,), (1, 2, 4, 8, 16, 32))
    slow = ListedProblem(
        4,
        problem.meshes,
        (4,),
        problem.microbatches,
        points=problem.points,
        crossing=lambda *_: Crossing(Transfer(2.0), Transfer(2.0)),
    )
    found = solve(slow)
    assert found is not None
    assert found.microbatches < 32


def test_the_last_stages_keep_what_the_first_recompute() -> None:
    def points(first: int, end: int, mesh: int, count: int) -> list[StagePoint]:
        n = end - first
        keep = SegmentCost(n, n, n, static_bytes=10 * n, resident_bytes=10 * n)
        again = SegmentCost(n, 1.9 * n, n, static_bytes=10 * n, resident_bytes=1 * n)
        return [StagePoint(keep, choice="keep"), StagePoint(again, choice="again")]

    problem = ListedProblem(4, (MeshClass("one", (1,), 35),), (4,), (8,), points=points)
    found = solve(problem)
    assert found is not None
    assert [run.point.choice for run in found.runs] == ["again", "again", "keep", "keep"]
    assert found.timeline.peak_bytes <= 35


def test_interleaving_is_chosen_where_it_wins() -> None:
    found = solve(simple(16, (4,), (1.0,), (4,), schedules=("1f1b", "interleaved"), interleave=(2, 4)))
    assert found is not None
    assert found.schedule == "interleaved"
    assert len(found.runs) == 16
    assert found.step_s == pytest.approx(4 * (4 * 4 + 3))


def test_equal_stages_of_another_size_are_hopeful() -> None:
    """Four devices by one or by two, these 1.9 times as fast: a schedule of its own could make either the faster."""
    meshes = (MeshClass("one", (1,), 10**9), MeshClass("two", (2,), 10**9))

    def points(first: int, end: int, mesh: int, count: int) -> list[StagePoint]:
        seconds = (end - first) / (1.0, 1.9)[mesh] * 16 / count / 3
        return [StagePoint(SegmentCost(seconds, seconds, seconds, resident_bytes=end - first))]

    problem = ListedProblem(12, meshes, (4,), (16,), points=points, later=("searched",))
    found = solve(problem)
    assert found is not None
    sizes = {len(runs) for runs, _, _ in found.promising}
    assert sizes == {2, 4} - {len(found.runs)}
    for runs, schedule, count in found.promising:
        assert (schedule, count) == ("1f1b", 16)
        assert len({run.mesh for run in runs}) == 1
    assert not solve(replace(problem, later=())).promising  # type: ignore[union-attr]


def every_interleaving(problem: ListedProblem, stages: int, rounds: int) -> Iterator[tuple[PlacedRun, ...]]:
    """All ways to deal a chain out to equal submeshes, so many runs to each."""
    for mesh, made in enumerate(problem.meshes):
        if any(stages * want > have for have, want in zip(problem.devices, made.devices, strict=True)):
            continue
        for inner in combinations(range(1, problem.segments), stages * rounds - 1):
            pairs = list(pairwise((0, *inner, problem.segments)))
            offered = [problem.points(a, b, mesh, problem.microbatches[0]) for a, b in pairs]
            for points in product(*offered):
                yield tuple(
                    PlacedRun(a, b, i % stages, mesh, point)
                    for i, ((a, b), point) in enumerate(zip(pairs, points, strict=True))
                )


def least_dealt_s(problem: ListedProblem, count: int) -> float:
    """The least bound of two stages with two runs each."""
    rows = listed_rows(problem, count)
    assert rows is not None
    made = [Interleaved(problem, rows, count, mesh, 2, 2) for mesh, *shape in interleavings(problem) if shape == [2, 2]]
    for one in made:
        for runs in one.pipelines():
            timeline, least_s = price_pipeline(problem, runs, "interleaved", count), one.least_s()
            assert timeline is None or any(True for _ in one.pipelines(timeline.step_s * (1 + 1e-9)))
            assert timeline is None or timeline.step_s >= least_s * (1 - 1e-9)
    return min((one.least_s() for one in made), default=float("inf"))


def price_searched(problem: ListedProblem, runs: tuple[PlacedRun, ...], count: int) -> Timeline | None:
    """The pipeline under a schedule of its own; None where it does not fit the memory."""
    costs = pipeline_costs(problem, runs, "searched", count)
    gathered = frozenset(i for i, run in enumerate(runs) if run.point.cost.gather_params_s)
    recomputed = frozenset(i for i, cost in enumerate(costs.segments) if cost.restored_bytes)
    made = Pipeline(tuple(Run(i, i + 1, i) for i in range(len(runs))), count, gathered=gathered, recomputed=recomputed)
    points = [run.point.cost for run in runs]
    durations = Durations(
        tuple(point.forward_s for point in points),
        tuple(point.backward_input_s for point in points),
        tuple(point.backward_weight_s for point in points),
        {(key[0], key[0] + 1): sent.seconds + sent.latency_s for key, sent in costs.transfers.items()},
    )
    for room in range(count, 0, -1):
        played = simulate(lists(made, searched(made, durations, [room] * len(runs))), costs, spans=False)
        limits = [problem.meshes[run.mesh].memory_bytes for run in runs]
        if all(stage.peak_bytes <= limit for stage, limit in zip(played.stages, limits, strict=True)):
            return played
    return None


@pytest.mark.parametrize(
    ("seed", "count"),
    [*((seed, 3) for seed in range(300, 305)), (300, 1), (301, 2), pytest.param(302, 6, marks=pytest.mark.full)],
)
def test_nothing_interleaved_or_searched_is_below_the_bound(seed: int, count: int) -> None:
    """Every pipeline of two stages with two runs each, and every other under a schedule of its own."""
    made = random_problem(seed)
    problem = replace(made, schedules=("1f1b", "interleaved"), later=("searched",), microbatches=(count,))
    try:
        found = solve(problem, budget=40)
    except PlanError:
        return
    assert found is not None
    dealt = [price_pipeline(problem, runs, "interleaved", count) for runs in every_interleaving(problem, 2, 2)]
    plain = [price_searched(problem, runs, count) for runs in islice(every_pipeline(problem), 60)]
    for timeline in (*dealt, *plain):
        assert timeline is None or timeline.step_s >= found.bound_s * (1 - 1e-9)
    fitting = [timeline.step_s for timeline in dealt if timeline is not None]
    assert all(step_s >= least_dealt_s(problem, count) * (1 - 1e-9) for step_s in fitting)
    assert found.step_s <= 1.1 * min(fitting, default=float("inf"))


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=[pytest.mark.full] * (seed >= 30)) for seed in range(60)])
def test_no_interleaved_pipeline_of_summed_segments_is_below_its_fullest_stage(seed: int) -> None:
    """Alike layers between an embedding and a head, dealt in every way; a row takes what its segments take."""
    dice = random.Random(seed)
    stages, rounds = dice.choice([(2, 2), (2, 2), (3, 2), (2, 3)])
    count, layers = dice.choice([2, 3, 4, 6]), dice.randint(stages * rounds - 1, 7)
    work = [dice.choice([0.05, 1.5]), *([1.0] * layers), dice.uniform(0.1, 2.5)]

    def points(first: int, end: int, mesh: int, microbatches: int) -> list[StagePoint]:
        seconds = sum(work[first:end])
        return [StagePoint(SegmentCost(seconds / 3, seconds / 3, seconds / 3, resident_bytes=1))]

    problem = ListedProblem(
        len(work),
        (MeshClass("1", (1,), 10**6),),
        (stages,),
        points=points,
        microbatches=(count,),
        schedules=("interleaved",),
    )
    rows = listed_rows(problem, count)
    assert rows is not None
    bound = Interleaved(problem, rows, count, 0, stages, rounds)
    steps = [
        timeline.step_s
        for runs in every_interleaving(problem, stages, rounds)
        if (timeline := price_pipeline(problem, runs, "interleaved", count)) is not None
    ]
    assert 0.75 * min(steps) < max(bound.fullest_s(None), bound.least_s()) <= min(steps) * (1 + 1e-9)


@pytest.mark.full
def test_many_segments_on_many_devices() -> None:
    """128 segments as 32 clusters on 16,384 devices: all of them used, the bound met within a twentieth."""
    sizes = (64, 128, 256, 512, 1024)
    meshes = tuple(MeshClass(str(size), (size,), 80 << 30) for size in sizes)

    def points(first: int, end: int, mesh: int, count: int) -> list[StagePoint]:
        n, size = end - first, sizes[mesh]
        seconds = n * 3e4 / count / size * 1.03 ** (size / 64)
        kept = int(4e12 * n / count / size)
        both = ((1.0, kept), (1.3, kept // 10))
        return [
            StagePoint(SegmentCost(seconds, seconds * more, seconds, 0.0, 0.05, 0.02, 0.0, int(5e10 * n / size), held))
            for more, held in both
        ]

    problem = ListedProblem(
        128, meshes, (16384,), (64, 256), points=points, crossing=lambda *_: Crossing(Transfer(1e-3), Transfer(1e-3)),
        cuts=tuple(range(0, 129, 4)),
    )  # fmt: skip
    found = solve(problem, budget=40)
    assert found is not None
    assert sum(sizes[run.mesh] for run in found.runs) == 16384
    assert found.gap < 0.05


def test_nothing_faster_than_what_is_known() -> None:
    problem = simple(4, (2,), (1.0,), (4,))
    found = solve(problem)
    assert found is not None
    assert solve(problem, incumbent_s=found.step_s * 0.99) is None


def test_what_makes_no_problem_is_refused() -> None:
    with pytest.raises(PlanError, match="schedules"):
        solve(simple(2, (1,), (1.0,), (1,), schedules=("best",)))
    with pytest.raises(PlanError, match="cuts"):
        solve(simple(2, (1,), (1.0,), (1,), cuts=(0, 1)))
    with pytest.raises(PlanError, match="micro-batches"):
        solve(simple(2, (1,), (1.0,), ()))
