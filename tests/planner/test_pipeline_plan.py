"""`make_plan` may answer with a pipeline: what it says is what the simulator finds from the plan alone."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from small_models import small_model

from meshwright.capture import capture
from meshwright.capture.program import Program
from meshwright.cluster import load_cluster
from meshwright.cutting import batch_cuts
from meshwright.errors import PlanError
from meshwright.models.reference import parse_reference
from meshwright.pins.stages import PipelinePins, pipeline_pins
from meshwright.plan import Plan
from meshwright.plan.units import show_bytes
from meshwright.planner.effort import SIMPLER_WITHIN
from meshwright.planner.pipeline import search as pipeline
from meshwright.planner.pipeline.search import PipelineSearch
from meshwright.planner.plan import make_plan
from meshwright.planner.reprice import reprice
from meshwright.planner.search_log import SearchRecorder
from meshwright.planner.stages.problem import StageSolution
from meshwright.predict.simulated import simulate_plan
from meshwright.predict.step import pipeline_predicted as predicted
from meshwright.price.check import check_plan
from meshwright.price.parameter import Setting
from meshwright.schedule import plan_lists, verify_lists
from meshwright.schedule.reads import reads_of

DEEP = "gpt?layers=6&hidden=64&heads=4&ffn=128&vocab=256&seq=32&tied=false"

MIXED = """
name = "mix"
backend = "gloo"
[device.fast]
kind = "cpu"
memory = "8GiB"
memory_bandwidth = "40GB/s"
peaks = { float32 = "200G" }
[device.slow]
kind = "cpu"
memory = "4GiB"
memory_bandwidth = "10GB/s"
peaks = { float32 = "50G" }
[level.host]
bandwidth = "2GB/s"
latency = "50us"
[level.net]
bandwidth = "100MB/s"
latency = "200us"
[[host]]
device = "fast"
devices = 1
[[host]]
device = "slow"
devices = 1
"""


@pytest.fixture(scope="module")
def gpt() -> Program:
    return capture(*parse_reference(DEEP).meta(16))


def holds(plan: Plan, program: Program) -> None:
    """What every plan of several stages must satisfy."""
    check_plan(plan, program)
    assert Plan.from_json(plan.to_json()) == plan
    verify_lists(plan_lists(plan, program), reads=reads_of(program))
    played = simulate_plan(plan, program)
    assert played.step_s == pytest.approx(plan.predicted.step_s, rel=1e-12)
    assert played.peak_bytes == plan.predicted.peak_bytes
    assert [s.peak_bytes for s in played.stages] == [s.peak_bytes for s in plan.predicted.stages]
    assert reprice(plan, program).predicted.step_s == pytest.approx(plan.predicted.step_s, rel=1e-12)


@pytest.mark.parametrize(
    "pins",
    [
        pytest.param(("pp=2",), marks=pytest.mark.full),
        ("pp=3", "schedule=1f1b"),
        pytest.param(("pp=4", "schedule=gpipe"), marks=pytest.mark.full),
        ("pp=2", "tp=2", "schedule=zero-bubble"),
        ("pp=2", "schedule=interleaved"),
        ("pp=4", "schedule=searched"),
    ],
)
def test_a_pipeline_takes_what_was_predicted(gpt: Program, pins: tuple[str, ...]) -> None:
    plan = make_plan(gpt, load_cluster("local:4"), pins=pins)
    assert len(plan.groups) == int(pins[0].removeprefix("pp="))
    assert sorted(rank for group in plan.groups for rank in group[0].mesh.ranks) == [0, 1, 2, 3]
    if "schedule" in pins[-1]:
        assert plan.schedule == pins[-1].removeprefix("schedule=")
        if plan.schedule != "searched":  # which may be found for interleaved stages too
            assert (len(plan.stages) > len(plan.groups)) == (plan.schedule == "interleaved")
    holds(plan, gpt)


def test_the_stage_programme_and_the_plan_agree(gpt: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step of the pipeline that was chosen, run by run, is that of its plan, segment by segment."""
    seen: list[StageSolution] = []
    solve = pipeline.solve_stages

    def spied(*args: object, **options: object) -> StageSolution | None:
        found = solve(*args, **options)  # type: ignore[arg-type]
        seen.extend([found] if found else [])
        return found

    monkeypatch.setattr(pipeline, "solve_stages", spied)
    asked = pipeline_pins(("pp=3", "microbatch=8", "schedule=1f1b"))
    search = PipelineSearch(gpt, load_cluster("local:4"), None, Setting(), asked)
    plan = search.finish()
    assert plan is not None
    assert seen[0].step_s == pytest.approx(plan.predicted.step_s, rel=1e-6)
    assert search.bound_s(plan.predicted.step_s) <= plan.predicted.step_s


def test_a_smaller_last_micro_batch_is_priced_as_such(gpt: Program) -> None:
    plan = make_plan(gpt, load_cluster("local:2"), pins=("pp=2", "schedule=1f1b", "microbatch=3"))
    assert (plan.microbatch, plan.remainder is not None) == (6, True)
    holds(plan, gpt)
    full, fewer = (predicted(replace(plan, batch=6 * n, microbatches=n), gpt)[0].predicted.step_s for n in (3, 2))
    assert fewer < plan.predicted.step_s < full


def test_numbers_that_do_not_divide_the_batch_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where those that do are far apart."""
    assert batch_cuts(22) == [1, 2, 3, 6, 11, 22]
    tried: dict[int, float] = {}
    look_at = PipelineSearch.try_count

    def spied(self: PipelineSearch, count: int) -> float:
        self.incumbent_s = float("inf")
        tried[count] = look_at(self, count)
        return tried[count]

    monkeypatch.setattr(PipelineSearch, "try_count", spied)
    program = capture(*parse_reference(DEEP).meta(22))
    make_plan(program, load_cluster("local:2"), pins=("pp=2", "schedule=1f1b"))
    assert list(tried)[:2] == [6, 11]
    assert tried[6] < tried[11] < float("inf")


@pytest.mark.parametrize(("batch", "incumbent_s", "last"), [(16, 1.0, 2), (16, float("inf"), 16), (10**6, 1.0, 125)])
def test_which_numbers_of_micro_batches_are_tried(
    batch: int, incumbent_s: float, last: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nothing is faster, one more and one fewer; where nothing fits, as many as there are. Of a very large batch
    no more than fill the devices."""
    tried: list[int] = []

    def spied(self: PipelineSearch, count: int) -> float:
        tried.append(count)
        return float("inf")

    monkeypatch.setattr(PipelineSearch, "try_count", spied)
    program, pins = capture(*parse_reference("mlp?hidden=8&inputs=4").meta(batch)), PipelinePins(2, None, ())
    search = PipelineSearch(
        program, load_cluster("local:2"), None, Setting(), pins, recompute=False, incumbent_s=incumbent_s
    )
    search.search_microbatches()
    assert last in tried
    assert max(tried) <= 2 * 2 * pipeline.MOST_UNITS


def test_stages_have_the_devices_that_were_asked_for(gpt: Program) -> None:
    plan = make_plan(gpt, load_cluster("local:4"), pins=("pp=1+2+1", "microbatch=4"))
    assert [group[0].mesh.world_size for group in plan.groups] == [1, 2, 1]
    holds(plan, gpt)


def test_memory_that_binds_makes_early_stages_recompute(gpt: Program) -> None:
    cluster, pins = load_cluster("local:4"), ("pp=4", "schedule=1f1b", "microbatch=8")
    free = make_plan(gpt, cluster, pins=pins)
    limit = int(0.77 * max(stage.peak_bytes for stage in free.predicted.stages))
    tight = make_plan(gpt, cluster, pins=pins, memory_bytes=limit)
    assert not free.recomputes
    assert tight.recomputes
    assert tight.predicted.peak_bytes <= limit
    assert tight.predicted.step_s >= free.predicted.step_s
    holds(tight, gpt)
    between = make_plan(gpt, cluster, pins=pins, memory_bytes=int(0.88 / 0.77 * limit))
    assert between.predicted.step_s <= tight.predicted.step_s


def test_a_tied_weight_is_a_guest_of_the_last_stage() -> None:
    program = capture(*parse_reference(DEEP.replace("false", "true")).meta(16))
    plan = make_plan(program, load_cluster("local:2"), pins=("pp=2", "schedule=1f1b"))
    assert list(plan.stages[1].tied_replicas) == ["tokens.weight"]
    assert {(wire.source, wire.target) for wire in plan.links} == {(0, 1), (1, 0)}
    holds(plan, program)
    alone = replace(plan, stages=(plan.stages[0], replace(plan.stages[1], tied_replicas={})))
    with pytest.raises(PlanError, match=r"stages\[1\].tied_replicas lacks tokens.weight") as refused:
        check_plan(alone, program)
    assert refused.value.todo


def test_values_that_skip_stages_are_sent() -> None:
    program = capture(*small_model("unet"))
    plan = make_plan(program, load_cluster("local:2"), pins=("pp=2", "microbatch=2"))
    holds(plan, program)


def test_one_stage_is_kept_where_it_is_faster(gpt: Program) -> None:
    cluster = load_cluster("local:2")
    free = make_plan(gpt, cluster)
    best = min((make_plan(gpt, cluster, pins=(pin,)) for pin in ("pp=1", "pp=2")), key=lambda p: p.predicted.step_s)
    assert free.predicted.step_s == pytest.approx(best.predicted.step_s, rel=1e-9)
    assert len(free.stages) == len(best.stages)


@pytest.mark.parametrize(
    "pins",
    [
        ("pp=0",),
        ("pp=x",),
        ("schedule=none",),
        ("pp=9",),
        ("pp=5",),
        ("pp=1+2",),
        ("pp=2", "dp=4"),
        ("pp=2", "microbatch=7"),
        ("pp=2", "microbatch=32"),
        ("pp=1", "schedule=1f1b"),
        ("pp=2", "pp=4"),
    ],
)
def test_pins_that_no_pipeline_has_are_refused(gpt: Program, pins: tuple[str, ...]) -> None:
    with pytest.raises(PlanError, match=re.escape(pins[-1])):
        make_plan(gpt, load_cluster("local:4"), pins=pins)


@pytest.mark.parametrize(
    ("pins", "given", "expected"),
    [
        (("pp=3", "mesh=2x2"), "pp=3, mesh=2x2 on 4 devices: 3 stages of 4 each need 12", "4 devices together"),
        (("schedule=1f1b", "mesh=2x2"), "two or more stages of 4 each need 8", "4 devices together"),
        (("pp=1+3", "mesh=1x2"), "pins pp=1+3, mesh=1x2", "stages of 2 devices"),
        (("pp=1+3", "schedule=interleaved"), "pp=1+3, schedule=interleaved on 4 devices", "as many devices each"),
        (("pp=3", "schedule=interleaved"), "pp=3, schedule=interleaved on 4 devices", "as many devices each"),
        (
            ("pp=1+2+1", "tp=2"),
            "pp=1+2+1, tp=2 on 4 devices",
            "for tp=2 a multiple of 2 devices on every stage, such as pp=2+2",
        ),
        (("pp=1+3", "tp=2"), "pp=1+3, tp=2 on 4 devices", "such as pp=2+2"),
        (("pp=1+1+2+1",), "pin pp=1+1+2+1 on 4 devices", "sum to 4"),
        (("pp=1+1+1+1+1",), "pin pp=1+1+1+1+1 on 4 devices", "at most 4 stages"),
    ],
)
def test_what_no_memory_would_help_is_refused_for_what_it_is(
    gpt: Program, pins: tuple[str, ...], given: str, expected: str
) -> None:
    with pytest.raises(PlanError) as refused:
        make_plan(gpt, load_cluster("local:4"), pins=pins)
    assert given in refused.value.given
    assert expected in refused.value.expected
    assert refused.value.todo
    assert "bytes" not in str(refused.value)


def test_interleaved_stages_of_two_device_types_are_refused(gpt: Program, tmp_path: Path) -> None:
    (tmp_path / "mix.toml").write_text(MIXED)
    with pytest.raises(PlanError, match="devices of one type: interleaved stages are all alike") as refused:
        make_plan(gpt, load_cluster(str(tmp_path / "mix.toml")), pins=("schedule=interleaved", "microbatch=4"))
    assert "whose devices are fast and slow" in refused.value.given


def test_interleaved_stages_of_too_few_segments_are_refused(gpt: Program) -> None:
    fault = "pp=1+1+1+1+1, schedule=interleaved for a model of 8 layers\n  expected: at least 10 layers"
    with pytest.raises(PlanError, match=re.escape(fault)):
        make_plan(gpt, load_cluster("local:5"), pins=("pp=1+1+1+1+1", "schedule=interleaved"))


def test_a_plan_without_a_link_is_refused(gpt: Program) -> None:
    plan = make_plan(gpt, load_cluster("local:2"), pins=("pp=2",))
    with pytest.raises(PlanError, match="no link from stage"):
        simulate_plan(replace(plan, links=()), gpt)


def test_describing_a_pipeline_names_its_stages(gpt: Program) -> None:
    plan = make_plan(gpt, load_cluster("local:2"), pins=("pp=2",))
    text = plan.explain()
    assert "pipeline of 2 stages" in text
    assert "bubble" in text
    assert "stage 1" in text


def test_explaining_a_pipeline_says_whether_memory_binds_and_how_long_collectives_take(gpt: Program) -> None:
    plan = make_plan(gpt, load_cluster("local:4"), pins=("pp=2", "dp=2"))
    peaks = [stage.peak_bytes for stage in plan.predicted.stages]
    fullest = f"on stage {peaks.index(max(peaks))}, the fullest"
    text = plan.explain()
    assert re.search(f"memory is not the bottleneck: .* are free {fullest}", text)
    assert re.search(r"stage 1: \d+ x all_reduce over dp, .*B, .*s\n", text)
    tight = replace(plan, memory_bytes=max(peaks)).explain()
    assert (
        f"memory is the bottleneck: 0 B of {show_bytes(max(peaks))} (the limit that was given) are left {fullest}"
        in tight
    )


def test_first_look_goes_on_to_more_micro_batches_until_a_pipeline_fits(
    gpt: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it finds prunes the search for plans of one stage; nothing is tried twice with the same memory."""
    monkeypatch.setattr(PipelineSearch, "too_tight", lambda self: [])
    cluster, log = load_cluster("local:4"), SearchRecorder()
    tight = PipelineSearch(gpt, cluster, 2_000_000, Setting(), log=log, recompute=False)
    first = tight.begin()
    assert first is not None
    assert first.microbatches > batch_cuts(gpt.batch, pipeline.MOST_TASKS)[2]  # of SAMPLES samples each
    best = tight.finish()
    assert best is not None
    assert best.predicted.step_s <= first.predicted.step_s
    nodes = [entry.node for entry in log.log() if entry.node.startswith("pipelines, ")]
    assert len(nodes) == len(set(nodes))


def test_micro_batch_counts_that_a_rough_count_rules_out_are_tried_again() -> None:
    """With eight micro-batches something fits by the rough count, with four only by that of traced pairs."""
    model = "gpt?layers=2&hidden=1024&heads=8&seq=1024"
    program = capture(*parse_reference(model).meta(16), precision="mixed")
    free, pinned = (
        make_plan(
            program, load_cluster("h100:4"), memory_bytes=int(1.2 * 2**30), precision="mixed", pins=("pp=2", *more)
        )
        for more in ((), ("zero=1",))
    )
    assert (free.microbatches, pinned.microbatches) == (4, 4)
    assert free.predicted.step_s <= pinned.predicted.step_s * (1 + SIMPLER_WITHIN)


@pytest.mark.full
@pytest.mark.parametrize(
    ("model", "batch", "devices", "pin"),
    [("gpt?layers=4&seq=256", 16, "h100:4", "microbatch=1"), ("gpt2-medium?seq=512", 8, "dgx-a100:2", "pp=2")],
)
def test_fewer_micro_batches_are_tried_where_hill_climbing_did_not_come(
    model: str, batch: int, devices: str, pin: str
) -> None:
    """Two stages in one micro-batch are 14 and 15 % faster than any plan of one stage, and no other number of
    micro-batches is."""
    program = capture(*parse_reference(model).meta(batch), precision="mixed")
    cluster = load_cluster(devices)
    pinned = make_plan(program, cluster, precision="mixed", pins=(pin,))
    assert len(pinned.stages) == 2
    plan = make_plan(program, cluster, precision="mixed")
    assert plan.predicted.step_s <= pinned.predicted.step_s * (1 + SIMPLER_WITHIN)
