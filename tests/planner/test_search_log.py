"""`gap=` ends a search by proof, and `plan.search_log` says what was searched, bounded and pruned."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from small_models import small_model
from torch import nn

import meshwright as mw
from meshwright.capture import capture
from meshwright.capture.program import Program
from meshwright.cli import main
from meshwright.cluster import load_cluster
from meshwright.cutting import batch_cuts
from meshwright.errors import PlanError
from meshwright.explain.recommend import notes
from meshwright.models.reference import parse_reference
from meshwright.plan import Plan
from meshwright.plan.search_log import ENDS, INTERRUPTED, SEARCH, SearchEvent, SearchLog
from meshwright.planner.plan import make_plan


@cache
def program() -> Program:
    return capture(*small_model("gpt")).at_batch(16)


@cache
def layers() -> Program:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32)) for _ in range(2)))
    return capture(model, {"input": torch.zeros(16, 32), "y": torch.zeros(16, 32)}, nn.functional.mse_loss)


@cache
def free() -> Plan:
    return make_plan(program(), load_cluster("h100:2"), simpler_within=0.0)


def test_the_log_has_incumbents_that_fall_and_ends_with_the_plan() -> None:
    events = list(free().search_log)
    steps = [event.step_s for event in events if event.what == "incumbent"]
    assert {event.what for event in events} <= {"incumbent", *ENDS}
    assert {"incumbent", "expanded", "pruned"} <= {event.what for event in events}
    assert steps[-1] == pytest.approx(free().predicted.step_s, rel=1e-6)
    assert all(event.why for event in events if event.what == "pruned")
    assert_bounded(free())


def test_no_bound_in_the_log_is_below_the_gap_that_is_said() -> None:
    given = parse_reference("llama?layers=4&hidden=512&heads=8&kv_heads=8&ffn=1024&vocab=1000&seq=128").meta(16)
    plan = make_plan(capture(*given), load_cluster("h100:2"), gap=0.6)
    assert plan.predicted.gap < 0.5
    assert_bounded(plan)


def assert_bounded(plan: Plan) -> None:
    """What is pruned by its bound is no faster than what was found, but for the gap."""
    for event in plan.search_log or ():
        if event.what == "pruned" and event.bound_s is not None:
            assert event.bound_s >= plan.predicted.step_s * (1 - plan.predicted.gap) * (1 - 1e-9)


def test_numbers_of_microbatches_that_were_not_tried_are_named_with_their_bounds() -> None:
    plan = make_plan(layers(), load_cluster("h100:2"), pins=("pp=2",))
    nodes = [event.node for event in plan.search_log if event.node.startswith("pipelines, ")]
    told = [int(text) for node in nodes for text in node.split(maxsplit=1)[1].split(" micro")[0].split(", ")]
    assert sorted(set(told)) == batch_cuts(16)
    untried = [event for event in plan.search_log if "not tried" in event.why]
    assert [event.node for event in untried] == ["pipelines, 16 micro-batches"]


def test_what_is_found_where_memory_binds_is_told_as_the_best_so_far() -> None:
    cluster, pins, told = load_cluster("local:2"), ("pp=1", "microbatch=1"), list[str]()
    budget = int(0.6 * make_plan(layers(), cluster, pins=pins).predicted.peak_bytes)
    plan = make_plan(layers(), cluster, pins=pins, memory_bytes=budget, on_incumbent=told.append)
    assert told
    steps = [event.step_s for event in plan.search_log if event.step_s is not None]
    assert min(steps) == plan.predicted.step_s, "no rough count is shown as a step"
    assert told[-1].endswith(f": {plan.predicted.step_s:.4g} s")


def test_the_log_is_saved_and_is_no_part_of_equality() -> None:
    again = Plan.from_json(free().to_json())
    assert again == free()
    assert str(again.search_log) == str(free().search_log)
    assert again.search_log.summary in str(again.search_log)


def test_the_footer_counts_nodes_once_each() -> None:
    ends = [("a", "pruned"), ("a", "expanded"), ("a", "incumbent"), ("b", "pruned"), ("b", "stopped"), ("c", "pruned")]
    log = SearchLog(tuple(SearchEvent(node, what) for node, what in ends))
    assert log.summary == "nodes: 1 expanded, 1 stopped, 1 pruned; 1 incumbent"
    assert len(set(free().search_log)) == len(free().search_log)


def test_that_the_search_was_stopped_is_no_node() -> None:
    log = SearchLog((SearchEvent("a", "pruned"), SearchEvent(SEARCH, "stopped", INTERRUPTED)))
    assert log.summary == "nodes: 1 pruned; 0 incumbents"


def test_a_gap_that_is_not_proven_is_named_with_the_one_that_is() -> None:
    plan, asked = (make_plan(layers(), load_cluster("h100:2"), pins=("pp=2",), gap=gap) for gap in (0.0, 0.0001))
    said = f"a gap of 0.01% was asked for; {asked.predicted.gap:.2%} is proven"
    assert said in notes(asked)
    assert f"stopped    the search: {said}" in str(asked.search_log)
    assert not plan.search_log.unproven


def test_nodes_say_what_is_on_the_host() -> None:
    plan = make_plan(layers(), load_cluster("h100:2"), pins=("offload=auto",), memory_bytes=100 << 10)
    assert all(event.node.endswith(", optimizer state on the host") for event in plan.search_log)


def test_a_gap_ends_the_search_sooner_within_what_it_says() -> None:
    cluster, pins = load_cluster("local:2"), ("pp=1",)
    budget = int(0.6 * make_plan(layers(), cluster, pins=pins).predicted.peak_bytes)
    tight, loose = (
        make_plan(layers(), cluster, pins=pins, memory_bytes=budget, simpler_within=0.0, gap=gap) for gap in (0, 0.5)
    )
    expanded = [sum(event.what == "expanded" for event in plan.search_log) for plan in (tight, loose)]
    assert expanded[1] < expanded[0]
    assert loose.predicted.gap <= 0.5
    assert tight.predicted.step_s <= loose.predicted.step_s <= tight.predicted.step_s / (1 - 0.5)


@pytest.mark.parametrize("gap", [-0.1, 1.0, float("nan"), "2 %"])
def test_a_gap_that_is_no_part_is_refused(gap: float) -> None:
    model, batch, *_ = small_model("gpt")
    with pytest.raises(PlanError, match="gap"):
        mw.plan(model, batch, "local:2", gap=gap)


def test_the_command_prints_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    small = "gpt?layers=1&hidden=32&heads=4&ffn=64&vocab=128&seq=16"
    assert main(["plan", small, "--cluster", "local:2", "--quiet", "--log", "--gap", "0.05"]) == 0
    out = capsys.readouterr().out
    assert "search:\n" in out
    assert "incumbent" in out
    assert "bound" in out
