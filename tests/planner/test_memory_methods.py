"""Known ways to save memory, by name: each makes a plan that fits and is priced the same again, or says why not."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from small_models import small_model

from meshwright.capture import capture
from meshwright.capture.program import Program
from meshwright.cluster import load_cluster
from meshwright.cost.host_link import Copies
from meshwright.errors import PlanError
from meshwright.models.reference import parse_reference
from meshwright.pins.check import check_pins
from meshwright.plan import Plan
from meshwright.planner.plan import make_plan
from meshwright.planner.reprice import reprice
from meshwright.predict import predict

LAYERS = 6


@pytest.fixture(scope="module")
def program() -> Program:
    return capture(
        *parse_reference(f"llama?layers={LAYERS}&hidden=32&heads=4&kv_heads=4&ffn=64&vocab=64&seq=64").meta(8)
    )


def planned(program: Program, method: str, limit: int | None = None) -> Plan:
    pins = ("dp=2", "zero=1", "microbatch=1", f"recompute={method}")
    return make_plan(program, load_cluster("local:2"), pins=pins, memory_bytes=limit)


def test_every_method_is_a_plan_of_its_own(program: Program) -> None:
    found = {method: planned(program, method) for method in ("keep", "full", "selective", "sqrt")}
    held = {method: plan.predicted.resident_bytes for method, plan in found.items()}
    steps = {method: plan.predicted.step_s for method, plan in found.items()}
    assert held["full"] < held["selective"] < held["keep"]
    assert steps["keep"] < steps["selective"] < steps["full"]
    limit = (found["keep"].predicted.peak_bytes + found["full"].predicted.peak_bytes) // 2
    found |= {method: planned(program, method, limit) for method in ("rotor", "flat")}
    assert all(found[method].predicted.peak_bytes <= limit for method in ("rotor", "flat"))
    assert found["flat"].predicted.step_s <= found["rotor"].predicted.step_s
    assert [method for method, plan in found.items() if plan.order] == ["sqrt", "rotor"]
    passes = [step for step in found["sqrt"].order if step.startswith("pass ")]
    assert len(passes) == len(set(passes)), "Chen's runs no segment a third time"
    assert not any(choice.recompute for choice in found["rotor"].choices), "a segment keeps all or nothing"
    for method, plan in found.items():
        assert plan.recomputes == (method in ("full", "selective", "flat")), method
        assert reprice(plan, program).predicted == plan.predicted, method


def test_nothing_waits_on_the_host_where_that_is_pinned(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = 9 * planned(program, "keep").predicted.peak_bytes // 10
    monkeypatch.setattr("meshwright.planner.memory.curves.copies_of", lambda device: Copies(1e13, 1e13))
    found = {method: planned(program, method, limit) for method in ("auto", "flat")}
    waits = {method: any(choice.offload for choice in plan.choices) for method, plan in found.items()}
    assert waits == {"auto": True, "flat": False}


@pytest.mark.parametrize(
    "method", ["full", "flat", *(pytest.param(name, marks=pytest.mark.full) for name in ("sqrt", "rotor"))]
)
def test_a_limit_that_is_too_small_is_refused_with_one_that_does(program: Program, method: str) -> None:
    with pytest.raises(PlanError, match=f"no plan with recompute={method} fits in 1,000 bytes") as caught:
        planned(program, method, 1000)
    named = re.search(r"expected: ([\d,]+) bytes .*are enough", str(caught.value))
    assert named is not None
    least = int(named[1].replace(",", ""))
    assert planned(program, method, least).predicted.peak_bytes <= least
    with pytest.raises(PlanError, match="no plan with"):
        planned(program, method, int(0.99 * least))


@pytest.mark.parametrize(
    ("pins", "words"),
    [
        (("recompute=some",), "auto, flat, sqrt, rotor, nested, keep, full, selective"),
        (("recompute=full", "recompute=keep"), "one recompute"),
        (("recompute=rotor", "pp=2"), "one stage for a nested order, or recompute=keep"),
        (("recompute",), "recompute=auto"),
    ],
)
def test_pins_that_name_no_method(pins: tuple[str, ...], words: str) -> None:
    with pytest.raises(PlanError) as caught:
        check_pins(pins, load_cluster("local:2"))
    assert words in str(caught.value)


@pytest.mark.parametrize("precision", ["fp32", "mixed"])
def test_an_order_that_repeats_nothing_peaks_where_a_plain_step_does(precision: str) -> None:
    """In mixed precision each run of a layer holds copies of its weights, in a nested order too."""
    program = capture(*small_model("llama"), precision=precision)
    pins = ("microbatch=1", "recompute=keep")
    plan = make_plan(program, load_cluster("h100:1"), precision=precision, pins=pins)
    every = range(len(program.segments))
    order = (*(f"forward {index}" for index in every), *(f"backward {index}" for index in reversed(every)))
    peak = predict(replace(plan, order=order), program).peak_bytes
    assert plan.predicted.peak_bytes == pytest.approx(peak, abs=4)  # of the loss


def test_what_is_free_to_keep_is_no_checkpointing() -> None:
    """A squared loss may keep its gradient in the place of its input: as many bytes, and nothing runs again."""
    net = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Linear(32, 8))
    program = capture(net, (torch.rand(4, 8),), lambda output, _: output.square().mean())
    plan = make_plan(program, load_cluster("h100:1"))
    assert not plan.recomputes


@pytest.mark.full
def test_a_nested_order_takes_all_the_memory_there_is() -> None:
    """What waits to be reduced where every layer runs once is not taken off: a nested order has none of it."""
    limit = 1_865_103_360
    program = capture(*parse_reference("gpt2-medium?seq=1024").meta(32), precision="mixed")
    pins = ("dp=4", "zero=3")
    plan = make_plan(program, load_cluster("h100:4"), memory_bytes=limit, precision="mixed", pins=pins)
    assert plan.order
    assert 0.97 * limit < plan.predicted.peak_bytes <= limit
