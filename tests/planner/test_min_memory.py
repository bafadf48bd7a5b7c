"""What a refusal names: bytes that do, where one byte less is refused again, and what was tried."""

from __future__ import annotations

import ast
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from families import FAMILIES
from torch import Tensor, nn

from meshwright import planner
from meshwright.capture import capture
from meshwright.capture.program import Program
from meshwright.cluster import load_cluster
from meshwright.errors import PlanError
from meshwright.models.reference import parse_reference
from meshwright.plan import Plan
from meshwright.plan.units import show_bytes
from meshwright.planner import one_device, one_stage
from meshwright.planner.effort import FEW
from meshwright.planner.infeasible.estimate import training_state_bytes
from meshwright.planner.infeasible.min_memory import (
    FeasibilityTest,
    MemoryNeeded,
    WorkBudget,
    minimum_budget,
    smallest_budget,
)
from meshwright.planner.infeasible.refusals import TO_HOST, NoRoomError
from meshwright.planner.one_device import fit_curves
from meshwright.planner.plan import make_plan
from meshwright.price.parameter import Setting
from meshwright.runtime.fit import fit_plan, this_device


class Wide(nn.Module):
    """Layers that widen and narrow again."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16), nn.Dropout(0.0)) for _ in range(3)
        )

    def forward(self, x: Tensor) -> Tensor:
        start = x
        for layer in self.layers:
            x = x + layer(x)
        return (x - start).square().mean()


BATCH = {"x": torch.empty(64, 16, device="meta")}


def wide() -> nn.Module:
    with torch.device("meta"):
        return Wide()


def named(make: Callable[[int], Plan], refused: int) -> tuple[int, str]:
    with pytest.raises(PlanError) as caught:
        make(refused)
    number = caught.value.expected.split(" bytes")[0].removeprefix("at least ")
    return int(number.replace(",", "")), str(caught.value)


@pytest.mark.parametrize("method", ["auto", "rotor", "nested", "sqrt", "flat", "full"])
def test_fit_names_the_least_of_the_method(method: str) -> None:
    program, device = capture(wide(), BATCH), load_cluster("local:1").mesh((1,)).device
    found = fit_curves(program, device)
    least, _ = named(lambda limit: found.within(limit, method), 1000)
    assert found.within(least, method).predicted.peak_bytes <= least
    assert named(lambda limit: found.within(limit, method), least - 1)[0] == least


@pytest.mark.full
def test_fit_names_more_than_the_budget_it_refused_on_a_gpu_too() -> None:
    device = load_cluster("dgx-h100:1").mesh((8,)).device
    with pytest.raises(NoRoomError, match=r"recompute=rotor(.|\n)*may be lost") as caught:
        fit_plan(wide(), BATCH, 10_000, device=device, method="rotor")
    least = caught.value.least_bytes
    assert fit_plan(wide(), BATCH, least, device=device, method="rotor").memory_bytes == least


def test_what_a_refusal_on_a_gpu_names_is_not_refused_nor_is_more() -> None:
    """In mixed precision copies of weights wait beside a layer, which the search does not count and the plan does."""
    setting, cluster = "gpt?layers=4&hidden=256&heads=4&ffn=1024&vocab=2048&seq=128", load_cluster("4090:1")
    program = capture(*parse_reference(setting).meta(2), precision="mixed")

    def make(limit: int) -> Plan:
        return make_plan(program, cluster, precision="mixed", memory_bytes=limit)

    least, text = named(make, 1_000_000)
    assert "less may be enough" in text
    for more in (0, 1 << 10, 1 << 18):
        assert make(least + more).predicted.peak_bytes <= least + more
    assert TO_HOST in named(make, least - (1 << 20))[1]


@pytest.mark.parametrize(
    "pins", [("microbatch=1",), ("microbatch=1", "recompute=rotor"), ("microbatch=1", "recompute=full")]
)
def test_a_plan_on_one_device_names_bytes_of_which_one_less_is_refused(pins: tuple[str, ...]) -> None:
    program, cluster = capture(wide(), BATCH), load_cluster("local:1")

    def make(limit: int) -> Plan:
        return make_plan(program, cluster, memory_bytes=limit, pins=pins)

    least, text = named(make, 1000)
    assert make(least).predicted.peak_bytes <= least
    assert named(make, least - 1)[0] == least
    assert "in one micro-batch" in text
    assert "most micro-batches" not in text
    assert "more devices" not in text, "none are known that would do"


def test_where_no_batch_is_small_enough_the_advice_says_so() -> None:
    """A smaller batch is no advice where parameters, gradients and optimizer state are too large by themselves."""
    program = capture(wide(), BATCH)
    least, text = named(lambda limit: make_plan(program, load_cluster("local:1"), memory_bytes=limit), 1000)
    half = "store all in half precision (--precision bf16): parameters"
    advice = f"raise the limit, shard over several devices{{}} or {half}"
    assert advice.format("") in text, "a CPU's memory is the host's"
    _, on_gpu = named(lambda limit: make_plan(program, load_cluster("h100:1"), memory_bytes=limit), 1000)
    assert advice.format(f", {TO_HOST}") in on_gpu
    assert "(--pin offload=auto, in Python pins='offload=auto')" in on_gpu
    assert "smaller" not in text
    _, text = named(lambda limit: make_plan(program, load_cluster("local:1"), memory_bytes=limit), least - 1)
    assert "make the batch smaller" in text


def test_beside_a_fixed_method_the_host_is_tried_too() -> None:
    program, cluster = capture(wide(), BATCH), load_cluster("h100:1")

    def make(limit: int, *pins: str) -> Plan:
        return make_plan(program, cluster, memory_bytes=limit, pins=("recompute=full", *pins))

    least, text = named(make, 1000)
    assert TO_HOST in text
    less, text = named(lambda limit: make(limit, "offload=auto"), 1000)
    assert less < least
    assert TO_HOST not in text
    assert any(entry.offload for entry in make(less, "offload=auto").parameters.values())


@pytest.mark.full
def test_a_nested_order_that_takes_less_is_named() -> None:
    """Six layers whose inputs are most of what is kept."""
    with torch.device("meta"):
        layers = [layer for _ in range(6) for layer in (nn.Linear(32, 32), nn.GELU())]
        model, batch = nn.Sequential(*layers), (torch.empty(256, 32),)
    program, cluster = capture(model, batch, lambda y, x: (y - x).square().mean()), load_cluster("local:1")

    def make(limit: int) -> Plan:
        return make_plan(program, cluster, memory_bytes=limit, pins=("microbatch=1",))

    least, text = named(make, 1000)
    assert "more than once" in text
    assert make(least).order
    assert named(make, least - 1)[0] >= least


def test_the_parts_of_a_peak_are_named_and_add_up() -> None:
    plan = fit_plan(wide(), BATCH, None, device=this_device())
    found = plan.predicted
    assert found.static_bytes + found.resident_bytes + found.transient_bytes == found.peak_bytes
    weights = sum(entry.numel() for entry in wide().parameters())
    assert found.static_bytes == 12 * weights + 64 * 16 * 4, "weights, two states, the batch"
    assert f"parameters, optimizer {show_bytes(found.static_bytes)}" in str(plan)
    assert Plan.from_json(plan.to_json()) == plan
    other = make_plan(capture(wide(), BATCH), load_cluster("local:1"))
    assert f"parameters, optimizer {show_bytes(other.predicted.static_bytes)}" in str(other)


def test_smallest_budget_is_exact_for_few_segments() -> None:
    tries: list[int] = []

    def fits(size: int) -> bool:
        tries.append(size)
        return size >= 123_457

    assert smallest_budget(fits, 1000, 2000, FEW) == 123_457
    exact = len(tries)
    assert 123_457 <= smallest_budget(fits, 1000, 2000, FEW + 1) < 124_000
    assert len(tries) < 2 * exact


class Narrow(nn.Module):
    """Two layers that a planner is quickly done with."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(2)))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).square().mean()


PINS = ((), ("pp=2",), ("recompute=keep",), ("dp=2",), ("recompute=full",), ("pp=2", "recompute=keep"))


def check_named(program: Program, cluster: str, pins: tuple[str, ...], refused: int = 1000) -> bool:
    """The named bytes do; one byte less is refused where that is said. Returns whether it is."""

    def make(limit: int) -> Plan:
        return make_plan(program, load_cluster(cluster), memory_bytes=limit, pins=pins)

    least, text = named(make, refused)
    assert make(least).predicted.peak_bytes <= least
    least_said = "one byte less is refused" in text
    assert least_said != ("less may be enough" in text)
    if least_said:
        with pytest.raises(PlanError):
            make(least - 1)
    return least_said


@pytest.mark.parametrize(
    ("cluster", "pins"),
    [
        *(pytest.param("local:2", pins, marks=[] if pins == PINS[2] else pytest.mark.full) for pins in PINS),
        *(pytest.param("local:1", pins) for pins in ((), ("recompute=keep",), ("recompute=rotor",))),
    ],
)
def test_one_byte_less_than_named_is_refused(cluster: str, pins: tuple[str, ...]) -> None:
    program = capture(Narrow(), {"x": torch.randn(4, 16)})
    held = -(-training_state_bytes(program, Setting("adamw", "fp32")) // load_cluster(cluster).device_count)
    assert check_named(program, cluster, pins, held)


@pytest.mark.parametrize("cluster", ["local:1", pytest.param("local:2", marks=pytest.mark.full)])
def test_without_room_for_the_training_state_nothing_is_searched(cluster: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is named does all the same."""
    program = capture(Narrow(), {"x": torch.randn(4, 16)})
    with monkeypatch.context() as patched:
        patched.setattr(one_stage, "search", None)
        patched.setattr(one_device.OneDeviceSearch, "best", None)
        with pytest.raises(PlanError) as refused:
            make_plan(program, load_cluster(cluster), memory_bytes=1000)
    least = int(refused.value.expected.split(" bytes")[0].replace(",", ""))
    assert make_plan(program, load_cluster(cluster), memory_bytes=least).predicted.peak_bytes <= least


def test_the_limit_that_was_asked_is_no_part_of_what_a_refusal_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both searches for it begin at the training state. Where there is no room for that the slow tests are not asked:
    they took most of a minute for a GPT of four layers on four devices."""
    program, cluster = capture(Narrow(), {"x": torch.randn(4, 16)}), load_cluster("local:2")
    held = -(-training_state_bytes(program, Setting("adamw", "fp32")) // cluster.device_count)
    began: list[int] = []

    def noted(tests: object, refused: int, known: MemoryNeeded, *rest: object) -> MemoryNeeded:
        began.append(refused)
        return known

    def make(limit: int) -> Plan:
        return make_plan(program, cluster, memory_bytes=limit, pins=("recompute=full",))

    with monkeypatch.context() as patched:
        patched.setattr(one_stage, "minimum_budget", noted)
        assert len({named(make, limit)[0] for limit in (1000, held, held + 16)}) == 1
    assert set(began) == {held - 1}
    with monkeypatch.context() as patched:
        patched.setattr(one_stage, "feasible_by_budgets", None)
        patched.setattr(one_stage, "feasible_jointly", None)
        least, text = named(make, 1000)
        assert named(make, held - 1)[0] == least
    assert "less may be enough" in text
    assert make(least).predicted.peak_bytes <= least
    assert named(make, held)[0] <= least


def test_chains_that_are_solved_exactly_are_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shardings alone would be within these units."""
    monkeypatch.setattr(one_stage, "WorkBudget", partial(WorkBudget, units=80))
    program = capture(Narrow(), {"x": torch.randn(4, 16)})
    held = -(-training_state_bytes(program, Setting("adamw", "fp32")) // 2)
    assert not check_named(program, "local:2", ("recompute=full",), held)


@pytest.mark.full
@pytest.mark.parametrize("method", ["full", "sqrt"])
def test_what_is_named_of_a_method_does_where_exact_chains_take_long(method: str) -> None:
    """To the byte it took more than seven minutes."""
    gpt = parse_reference("gpt?layers=2&hidden=256&heads=4&ffn=1024&vocab=1024&seq=128")
    assert not check_named(capture(*gpt.meta(8)), "4090:2", (f"recompute={method}",), 3 << 20)


@pytest.mark.full
@pytest.mark.parametrize("cluster", ["local:1", "local:2", "local:4"])
@pytest.mark.parametrize("family", ["mlp", "gpt", "moe", "unet"])
def test_what_is_named_of_a_family_does(family: str, cluster: str) -> None:
    check_named(capture(*parse_reference(FAMILIES[family]).meta(8)), cluster, ())


@pytest.mark.full
@pytest.mark.parametrize("pins", PINS)
def test_what_is_named_on_four_devices_does(pins: tuple[str, ...]) -> None:
    check_named(capture(Narrow(), {"x": torch.randn(4, 16)}), "local:4", pins)


def accepting(accepts: Callable[[int], bool], takes: int) -> FeasibilityTest:
    return lambda budget: MemoryNeeded(min(budget, takes), "so", 1) if accepts(budget) else None


@pytest.mark.parametrize("known", [1000, 700, 500])
def test_the_least_of_all_parts_is_found_to_the_byte(known: int) -> None:
    """Whether or not what was thought to do does."""
    parts = [accepting(lambda size: size >= 700, 690), accepting(lambda size: size >= 613, 5000)]
    found = minimum_budget(parts, 100, MemoryNeeded(known, "so", 1), True, WorkBudget(4))
    assert (found.bytes, found.refused) == (613, True)


def test_parts_that_accept_less_and_refuse_more_are_asked_for_one_byte_less() -> None:
    odd = accepting(lambda size: size >= 900 or 600 <= size < 650, 2000)
    found = minimum_budget(
        [odd, accepting(lambda size: size >= 640, 2000)],
        100,
        MemoryNeeded(1000, "so", 1),
        True,
        WorkBudget(4),
    )
    assert found.refused
    assert found.bytes in (600, 640, 900)
    assert odd(found.bytes - 1) is None


def test_what_there_is_no_time_for_is_not_claimed() -> None:
    part = accepting(lambda size: size >= 613, 2000)
    found = minimum_budget([part], 100, MemoryNeeded(1000, "so", 1), True, WorkBudget(4, units=0))
    assert (found.bytes, found.refused) == (1000, False)
    assert found.against(100) == "about 1,000 bytes (1000B), 900 more, by an estimate: so, in one micro-batch"


def test_of_many_segments_the_least_is_found_nearly() -> None:
    part, known = accepting(lambda size: size >= 613_000, 10**9), MemoryNeeded(10**6, "so", 1)
    found = minimum_budget([part], 100, known, False, WorkBudget(99, units=99 * 40))
    assert 613_000 <= found.bytes < 617_000
    assert not found.refused


def test_a_refusal_names_the_same_bytes_however_slow_the_machine_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Budgets are counted in work: a clock that runs a thousand times faster changes nothing."""
    part, known = accepting(lambda size: size >= 613_000, 10**9), MemoryNeeded(10**6, "so", 1)
    found = minimum_budget([part], 100, known, False, WorkBudget(99))
    now = time.process_time
    for clock in ("process_time", "perf_counter", "monotonic", "time"):
        monkeypatch.setattr(time, clock, lambda: 1e3 * now())
    assert minimum_budget([part], 100, known, False, WorkBudget(99)) == found


def test_no_module_of_the_planner_reads_a_clock() -> None:
    """What is planned or named in a refusal depends on no load; engines are asked with `work`."""
    for path in sorted(Path(planner.__file__).parent.rglob("*.py")):
        if path.name == "progress.py":
            continue  # it prints how long a search has taken, and decides nothing
        nodes = list(ast.walk(ast.parse(path.read_text())))
        names = {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
        names |= {one.name for node in nodes if isinstance(node, ast.Import) for one in node.names}
        assert not names & {"time", "datetime", "timeit"}, f"{path} reads a clock"
        given = [one.arg for node in nodes if isinstance(node, ast.Call) for one in node.keywords]
        engines = [node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
        assert "solve" not in engines or "seconds" not in given, f"{path} limits the engine in seconds"
