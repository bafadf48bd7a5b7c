"""What a refusal names: bytes that do, where one byte less is refused again, and what was tried."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from meshwright.capture import capture
from meshwright.cluster import load_cluster
from meshwright.errors import PlanError
from meshwright.plan import Plan
from meshwright.plan.units import show_bytes
from meshwright.runtime.fit import fit_curves, fit_plan, this_device
from meshwright.solve.memory.refuse import EXACT, NoRoomError, least_where
from meshwright.solve.plan import make_plan


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
    return int(caught.value.expected.split(" bytes")[0].removeprefix("at least ").replace(",", "")), str(caught.value)


@pytest.mark.parametrize("method", ["auto", "rotor", "nested", "sqrt", "flat", "full"])
def test_fit_names_the_least_of_the_method(method: str) -> None:
    program, device = capture(wide(), BATCH), load_cluster("local:1").mesh((1,)).device
    found = fit_curves(program, device)
    least, _ = named(lambda limit: found.within(limit, method), 1000)
    assert found.within(least, method).predicted.peak_bytes <= least
    assert named(lambda limit: found.within(limit, method), least - 1)[0] == least


def test_fit_names_more_than_the_budget_it_refused_on_a_gpu_too() -> None:
    device = load_cluster("dgx-h100:1").mesh((8,)).device
    with pytest.raises(NoRoomError, match=r"by rotor(.|\n)*may be lost") as caught:
        fit_plan(wide(), BATCH, 10_000, device=device, method="rotor")
    least = caught.value.least_bytes
    assert fit_plan(wide(), BATCH, least, device=device, method="rotor").memory_bytes == least


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
    assert f"parameters, optimizer, batch {show_bytes(found.static_bytes)}" in str(plan)
    assert Plan.from_json(plan.to_json()) == plan
    other = make_plan(capture(wide(), BATCH), load_cluster("local:1"))
    assert f"parameters, gradients, optimizer {show_bytes(other.predicted.static_bytes)}" in str(other)


def test_least_where_is_exact_for_few_segments() -> None:
    tries: list[int] = []

    def fits(size: int) -> bool:
        tries.append(size)
        return size >= 123_457

    assert least_where(fits, 1000, 2000, EXACT) == 123_457
    exact = len(tries)
    assert 123_457 <= least_where(fits, 1000, 2000, EXACT + 1) < 124_000
    assert len(tries) < 2 * exact
