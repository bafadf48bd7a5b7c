"""What is printed is what is simulated: a plan's predicted step is that of its Timeline, whatever the plan."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import small_model

from bench import planning
from meshwright.capture import capture
from meshwright.capture.program import Program
from meshwright.cli import plan as plan_command
from meshwright.cluster import load_cluster, presets
from meshwright.cluster.device_table import GPUS
from meshwright.cost.host_link import Copies, copies_of, state_copies
from meshwright.errors import PlanError
from meshwright.models.arguments import reference_of
from meshwright.plan import Plan
from meshwright.planner.memory.curves import Curves
from meshwright.planner.memory.methods import order_by
from meshwright.planner.one_device import fit_curves
from meshwright.planner.plan import make_plan
from meshwright.predict import one_stage, predict
from meshwright.predict.simulated import simulate_plan
from meshwright.schedule import ORDERS
from meshwright.sizes import parse_bytes

PRESETS = ("local:2", "local:4", *(f"{name}:1" for name in presets.PRESETS if name != "local"), "h200:4", "l4:2")
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
    ("pp=2", "recompute=keep", "microbatch=4"),
    ("zero=3", "offload=weights"),
    ("zero=1", "offload=optimizer:0.5"),
    ("pp=2", "offload=weights:0.5", "microbatch=2"),
)
H200 = "H200-SXM-141GB"


@cache
def program_of(name: str, devices: int = 1) -> Program:
    """With six samples for each device, so that these share them whether cut in two or in three."""
    model, batch = small_model(name)
    return capture(model, {key: value.repeat(devices, *[1] * (value.dim() - 1)) for key, value in batch.items()})


def check(plan: Plan, program: Program) -> None:
    timeline = simulate_plan(plan, program)
    assert timeline.step_s == pytest.approx(plan.predicted.step_s, rel=1e-9)
    again = predict(plan, program)
    assert again.step_s == pytest.approx(plan.predicted.step_s, rel=1e-9)
    assert again.peak_bytes == plan.predicted.peak_bytes
    if not plan.order:
        assert timeline.peak_bytes == again.peak_bytes


def made(name: str, preset: str, pins: tuple[str, ...], tight: float, compiled: bool = False) -> bool:
    """tight: of the bytes that the plan takes, what it may have. False where these pins do not go with this preset, or
    nothing fits."""
    cluster = load_cluster(preset)
    program = program_of(name, cluster.device_count)
    try:
        plan = make_plan(program, cluster, pins=pins, compile=compiled)
        limit = int(plan.predicted.peak_bytes * tight)
        plan = plan if tight == 1 else make_plan(program, cluster, pins=pins, memory_bytes=limit, compile=compiled)
    except PlanError:
        return False
    assert tight == 1 or plan.predicted.peak_bytes <= limit
    assert plan.compile is compiled
    check(plan, program)
    return True


@pytest.mark.parametrize(
    ("preset", "pins", "compiled"),
    [
        ("h200:2", ("zero=3", "microbatch=3"), False),
        ("local:2", ("recompute=sqrt", "zero=3"), False),
        ("local:2", ("pp=2", "schedule=zero-bubble", "microbatch=3"), False),
        ("local:2", ("pp=2", "schedule=zero-bubble", "microbatch=3"), True),
        ("h200:2", ("zero=3",), True),
    ],
)
def test_some_plans_take_what_was_predicted(preset: str, pins: tuple[str, ...], compiled: bool) -> None:
    assert made("gpt", preset, pins, 1.0, compiled)


@pytest.mark.full
@pytest.mark.parametrize("pins", WAYS, ids=",".join)
@pytest.mark.parametrize("preset", PRESETS)
def test_any_plan_takes_what_was_predicted(preset: str, pins: tuple[str, ...]) -> None:
    count = []

    @given(st.sampled_from(("gpt", "llama")), st.sampled_from((1.0, 0.97)), st.booleans())
    @settings(max_examples=2, deadline=None, derandomize=True)
    def check_one(name: str, tight: float, compiled: bool) -> None:
        count.append(made(name, preset, pins, tight, compiled))

    check_one()
    offloads = any(pin.startswith("offload") for pin in pins)
    refused = offloads and state_copies(load_cluster(preset).devices[0]) is None  # no link to the host was measured
    assert any(count) is not refused, "what can be planned is compared"


@pytest.mark.full
@pytest.mark.parametrize("case", [name for name, case in planning.CASES.items() if not case.refused])
def test_plans_of_the_planning_bench_take_what_was_predicted(case: str) -> None:
    parser = argparse.ArgumentParser()
    plan_command.add_arguments(parser)
    args = parser.parse_args(planning.CASES[case].request.split())
    cluster = load_cluster(args.cluster)
    precision = plan_command.precision_for(args, cluster)
    program = capture(*reference_of(args).meta(args.global_batch), precision=precision)
    limit = parse_bytes(args.memory)
    check(make_plan(program, cluster, precision=precision, pins=args.pin, memory_bytes=limit), program)


@cache
def curves_of(name: str, device: str, compiled: bool, microbatches: int) -> Curves:
    here = load_cluster("local:1").devices[0] if device == "cpu" else GPUS[device].device
    return fit_curves(program_of(name), here, compile=compiled, microbatches=microbatches)


def check_drawn(data: st.DataObject, name: str, devices: Sequence[str], numbers: Sequence[int]) -> None:
    """A plan of one device whose segments run in any of their ways, offloading among them, or in a nested order."""
    device, compiled, number = data.draw(st.tuples(st.sampled_from(devices), st.booleans(), st.sampled_from(numbers)))
    found, program = curves_of(name, device, compiled, number), program_of(name)
    method = data.draw(st.sampled_from(("drawn", "sqrt", "nested")))
    if method == "drawn":
        away = found.offload_options or ((),) * len(found.options)
        ways = [data.draw(st.sampled_from((*some, *more))) for some, more in zip(found.options, away, strict=True)]
        plan = found.written(ways, None, 0.0)
    else:
        room = found.least("nested", 0)[0] - found.static_bytes if method == "nested" else 0
        order = order_by(found.chained(), method, room)
        assert order is not None
        steps = tuple(f"{kind} {index}" for kind, index in order.steps)
        plan = found.written(order.picked, None, 0.0, steps)
        assert method == "nested" or any(step.startswith("pass") for step in plan.order)
    assert (plan.compile, plan.microbatches) == (compiled, number)
    assert plan.predicted.host_s < 1e-12 or device != "cpu"
    check(plan, program)


@given(st.data())
@settings(max_examples=3, deadline=None, derandomize=True)
def test_any_way_to_save_memory_takes_what_was_predicted(data: st.DataObject) -> None:
    check_drawn(data, "llama", (H200,), (1, 2))


@pytest.mark.full
@given(st.data(), st.sampled_from(("gpt", "llama", "resnet")))
@settings(max_examples=80, deadline=None)
def test_any_way_on_any_device(data: st.DataObject, name: str) -> None:
    check_drawn(data, name, ("cpu", *GPUS), (1,) if name == "resnet" else (1, 2, 3))


@pytest.mark.parametrize("compiled", [False, True])
def test_nested_plans_have_the_calls_of_the_host(compiled: bool) -> None:
    """Small work on a GPU waits for its host: every run of a segment is asked for, and what runs twice is so twice."""
    program, found = program_of("llama"), curves_of("llama", H200, compiled, 1)
    flat = found.written([options[0] for options in found.options], None, 0.0)
    order = order_by(found.chained(), "sqrt", 0)
    assert order is not None
    steps = tuple(f"{kind} {index}" for kind, index in order.steps)
    nested = found.written(order.picked, None, 0.0, steps)
    passes = [index for kind, index in order.steps if kind == "pass"]
    more_s = sum(order.picked[index].forward_host_s for index in passes)
    own_s = sum(kept.backward_host_s + kept.forward_host_s for kept in order.picked)
    step_host_s = flat.predicted.step_s - sum(o[0].backward_host_s + o[0].forward_host_s for o in found.options)
    assert flat.predicted.host_s > 0
    assert nested.predicted.step_s == pytest.approx(own_s + more_s + step_host_s, rel=1e-9)
    check(nested, program)


def test_values_on_the_host_are_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies there and back run beside compute; what does not hide is waited for, once each way."""
    program, device = program_of("gpt"), GPUS[H200].device
    found = fit_curves(program, device)
    ways = [options[0] for options in found.options]
    ways[1] = next(kept for kept in found.offload_options[1] if kept.offloaded_bytes)
    plan = found.written(ways, None, 0.0)
    check(plan, program)
    roomy = found.written([options[0] for options in found.options], None, 0.0)
    copies = copies_of(device)
    assert copies is not None
    calls_s = 2 * len(ways[1].offload) * copies.call_s
    assert plan.predicted.step_s == pytest.approx(roomy.predicted.step_s + calls_s, rel=1e-9), "the host asks for them"
    slow = Copies(rate=ways[1].offloaded_bytes / 1.0, memory_rate=1e15)
    monkeypatch.setattr(one_stage, "copies_of", lambda _: slow)
    late = predict(plan, program)
    assert 2.0 < late.step_s < 2.0 + roomy.predicted.step_s
    assert simulate_plan(plan, program).step_s == pytest.approx(late.step_s, rel=1e-9)
