"""Pipelines as the planner makes them compute what one process computes: interleaved, in an order of their own, with a
last micro-batch that is smaller than the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pipelines import compare, compare_traffic, program_of, trained
from processes import GlooPool

from meshwright.cluster import load_cluster
from meshwright.errors import PlanError
from meshwright.plan import Plan
from meshwright.planner.pipeline.by_hand import recomputing
from meshwright.planner.plan import make_plan

CASES: dict[str, dict[str, Any]] = {
    "interleaved, uneven": {"name": "llama", "pins": ("pp=2", "schedule=interleaved", "microbatch=5")},
    "searched": {"name": "gpt", "pins": ("pp=2", "schedule=searched", "microbatch=4")},
}
MORE: dict[str, dict[str, Any]] = {"one stage, uneven": {"name": "gpt", "pins": ("pp=1", "tp=2", "microbatch=5")}} | {
    f"{name}, {schedule}, {count} micro-batches on {ranks}{', recomputing' if again else ''}": {
        "name": name,
        "pins": (f"pp={stages}", f"schedule={schedule}", f"microbatch={count}"),
        "ranks": ranks,
        "again": again,
        "plain": count if name == "deep resnet" else 1,
    }
    for name in ("gpt", "llama", "t5", "unet", "deep resnet")
    for schedule in ("interleaved", "searched", "1f1b", "zero-bubble")
    for count in (5, 4)
    for stages, ranks in ((2, 2), (2, 4), (3, 3))
    for again in (False, True)
}


def matrix() -> list[Any]:
    quick = [pytest.param(case, id=name) for name, case in CASES.items()]
    return quick + [pytest.param(case, id=name, marks=pytest.mark.full) for name, case in MORE.items()]


def planned(case: dict[str, Any]) -> Plan:
    program = program_of(case["name"])
    plan = make_plan(program, load_cluster(f"local:{case.get('ranks', 2)}"), pins=case["pins"])
    return recomputing(plan, program) if case.get("again") else plan


@pytest.mark.parametrize("case", matrix())
def test_a_planned_pipeline_computes_what_one_process_computes(
    case: dict[str, Any], ranks: Callable[[int], GlooPool]
) -> None:
    wanted = [pin.removeprefix("schedule=") for pin in case["pins"] if pin.startswith("schedule=")]
    stages = int(case["pins"][0].removeprefix("pp="))
    if "interleaved" in wanted and 2 * stages > len(program_of(case["name"]).segments):
        with pytest.raises(PlanError, match="pipeline"):
            planned(case)
        return
    plan = planned(case)
    assert [plan.schedule] == wanted or not wanted
    assert (plan.remainder is not None) == ("microbatch=5" in case["pins"])
    found = ranks(plan.world_size).run(trained, case["name"], plan.to_json())
    compare(case["name"], found, case.get("plain", 1))
    if len(plan.stages) > 1:
        compare_traffic(plan, case["name"], found)


def test_a_number_that_leaves_no_sample_for_the_last_micro_batch_is_refused() -> None:
    for pins in (("pp=1", "microbatch=7"), ("pp=2", "microbatch=7")):
        with pytest.raises(PlanError, match="one of 1, 2, 3, 4, 5, 6, 8, 12, 24"):
            make_plan(program_of("gpt"), load_cluster("local:2"), pins=pins)
