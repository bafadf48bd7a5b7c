from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest
from small_models import small_model

from meshwright.capture import capture
from meshwright.cli import main
from meshwright.cluster import Group, Link, Member, load_cluster
from meshwright.planner.plan import make_plan
from meshwright.predict.simulated import simulate_plan

SMALL = "gpt?layers=1&hidden=32&heads=4&ffn=64&vocab=128&seq=16"


@pytest.mark.parametrize("pins", [("pp=1",), ("zero=3",)])
def test_a_plan_of_one_stage_takes_what_was_predicted(pins: tuple[str, ...]) -> None:
    program = capture(*small_model("gpt"))
    plan = make_plan(program, load_cluster("local:2"), pins=pins)
    found = simulate_plan(plan, program)
    assert found.step_s == pytest.approx(plan.predicted.step_s, rel=1e-6)
    assert found.bubble == pytest.approx(0.0, abs=1e-9)
    assert found.peak_bytes <= plan.predicted.peak_bytes * (1 + 1e-9)
    assert found.ranks == (2,)
    assert simulate_plan(plan, program, overlap=False).step_s >= found.step_s * (1 - 1e-9)


def test_waiting_for_kernel_launches_is_shown_where_there_is_any() -> None:
    program = capture(*small_model("gpt"))
    words = ("waiting for kernel launches ", ", kernel launches ")
    for cluster, waits in (("h100:2", True), ("local:2", False)):
        plan = make_plan(program, load_cluster(cluster), pins=("dp=2", "zero=0", "microbatch=1", "recompute=keep"))
        found = simulate_plan(plan, program)
        first, stage = str(found).splitlines()
        assert (words[0] in first, words[1] in stage) == (waits, waits)
        assert found.stages[0].host_s == pytest.approx(plan.predicted.host_s)


def test_collectives_inside_segments_are_exposed() -> None:
    """All that a tensor-parallel plan communicates is: nothing hides it."""
    program = capture(*small_model("gpt"))
    plan = make_plan(program, load_cluster("local:2"), pins=("tp=2", "zero=0"))
    found = simulate_plan(plan, program)
    assert found.stages[0].exposed_s == pytest.approx(plan.predicted.communication_s - plan.predicted.hidden_s)
    assert 0 < found.exposed < 1
    assert found.step_s == pytest.approx(plan.predicted.step_s, rel=1e-6)
    assert found.stages[0].busy_s + found.stages[0].exposed_s == pytest.approx(found.step_s)


def test_a_pipeline_reduces_gradients_beside_the_backward_of_its_first_stage() -> None:
    """Between hosts; what processes of one host send each other takes the time of the cores that compute."""
    program, local = capture(*small_model("gpt")), load_cluster("local:1")
    hosts = replace(local, root=Group("pod", Link(5e-5, 1e9), (Member(local.root, 4),)))
    plan = make_plan(program, hosts, pins=("pp=2", "dp=2", "zero=0", "microbatch=3"))
    found = simulate_plan(plan, program)
    assert found.step_s == pytest.approx(plan.predicted.step_s, rel=1e-9)
    assert found.step_s < simulate_plan(plan, program, overlap=False).step_s * (1 - 1e-6)


def test_the_command_writes_a_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan, trace = tmp_path / "plan.json", tmp_path / "t.json.gz"
    assert main(["plan", SMALL, "--cluster", "local:2", "--global-batch", "4", "--quiet", "-o", str(plan)]) == 0
    assert main(["simulate", str(plan), "--trace", str(trace)]) == 0
    assert "stage 0 (2 ranks)" in capsys.readouterr().out
    assert json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]


def test_an_unwritable_trace_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", str(tmp_path / "none.json")]) == 2
    assert "cannot be read" in capsys.readouterr().err
