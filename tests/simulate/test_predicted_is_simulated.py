"""What is printed is what is simulated: a plan's predicted step is that of its Timeline, whatever the plan."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import small_model

from meshwright.capture import capture
from meshwright.capture.program import Program
from meshwright.cluster import load_cluster
from meshwright.cluster.device_table import GPUS
from meshwright.errors import PlanError
from meshwright.plan import Plan
from meshwright.predict import one_stage, predict
from meshwright.remat.away import Copies
from meshwright.runtime.fit import this_device
from meshwright.schedule import ORDERS
from meshwright.solve.one_device import fit_curves
from meshwright.solve.plan import make_plan
from meshwright.solve.simulated import simulate_plan

PRESETS = ("local:2", "local:4", "dgx-h100:1", "dgx-a100:1", "p3.16xlarge:1")
WAYS = (
    *((f"zero={n}",) for n in range(4)),
    ("tp=2", "zero=1"),
    ("zero=3", "microbatch=3"),
    ("zero=2", "microbatch=2"),
    ("recompute=full",),
    ("recompute=sqrt",),
    ("recompute=selective", "zero=3"),
    ("recompute=nested", "zero=1"),
    *(("pp=2", f"schedule={name}", "microbatch=2") for name in (*ORDERS, "searched")),
    ("pp=2", "zero=3", "microbatch=3"),
    ("pp=2", "zero=2", "microbatch=2"),
)


@cache
def program_of(name: str) -> Program:
    return capture(*small_model(name))


def check(plan: Plan, program: Program) -> None:
    timeline = simulate_plan(plan, program)
    assert timeline.step_s == pytest.approx(plan.predicted.step_s, rel=1e-9)
    again = predict(plan, program)
    assert again.step_s == pytest.approx(plan.predicted.step_s, rel=1e-9)
    assert again.peak_bytes == plan.predicted.peak_bytes
    if not plan.order:
        assert timeline.peak_bytes == again.peak_bytes


def made(name: str, preset: str, pins: tuple[str, ...], tight: float) -> None:
    """tight: of the bytes that the plan takes, what it may have."""
    program, cluster = program_of(name), load_cluster(preset)
    try:
        plan = make_plan(program, cluster, pins=pins)
        limit = int(plan.predicted.peak_bytes * tight)
        plan = plan if tight == 1 else make_plan(program, cluster, pins=pins, memory_bytes=limit)
    except PlanError:
        return  # these pins do not go with this preset, or nothing fits
    assert tight == 1 or plan.predicted.peak_bytes <= limit
    check(plan, program)


@pytest.mark.parametrize(
    ("preset", "pins"),
    [
        ("dgx-h100:1", ("zero=3", "microbatch=3", "mesh=2")),
        ("dgx-h100:1", ("tp=2", "zero=1")),
        ("local:2", ("recompute=sqrt", "zero=3")),
        ("local:2", ("pp=2", "schedule=zero-bubble", "microbatch=3")),
    ],
)
def test_some_plans_take_what_was_predicted(preset: str, pins: tuple[str, ...]) -> None:
    made("gpt", preset, pins, 1.0)


@pytest.mark.full
@given(st.sampled_from(("gpt", "llama")), st.sampled_from(PRESETS), st.sampled_from(WAYS), st.sampled_from((1.0, 0.97)))
@settings(max_examples=60, deadline=None)
def test_any_plan_takes_what_was_predicted(name: str, preset: str, pins: tuple[str, ...], tight: float) -> None:
    made(name, preset, pins, tight)


@pytest.mark.parametrize("compiled", [False, True])
def test_plans_of_one_device_take_what_was_predicted(compiled: bool) -> None:
    program = program_of("gpt")
    curves = fit_curves(program, this_device(), compile=compiled)
    roomy = curves.within(None)
    check(roomy, program)
    check(curves.within(roomy.predicted.peak_bytes * 98 // 100), program)


def test_values_on_the_host_are_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies there and back run beside compute; what does not hide is waited for, once each way."""
    program, device = program_of("gpt"), GPUS["H200-SXM-141GB"].device
    found = fit_curves(program, device)
    ways = [options[0] for options in found.options]
    ways[1] = next(kept for kept in found.away[1] if kept.away_bytes)
    plan = found.written(ways, None, 0.0)
    check(plan, program)
    roomy = found.written([options[0] for options in found.options], None, 0.0)
    slow = Copies(rate=ways[1].away_bytes / 1.0, memory_rate=1e15)
    monkeypatch.setattr(one_stage, "copies_of", lambda _: slow)
    late = predict(plan, program)
    assert 2.0 < late.step_s < 2.0 + roomy.predicted.step_s
    assert simulate_plan(plan, program).step_s == pytest.approx(late.step_s, rel=1e-9)
