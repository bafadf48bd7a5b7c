"""`mw.fit` is `mw.plan` on one device: the same Plan, and one that a file brings to a trainer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import small_model

import meshwright as mw
from meshwright.cluster.device_table import GPUS
from meshwright.errors import PlanError
from meshwright.planner.one_device import one_device_cluster, room_bytes
from meshwright.runtime.fit import REFERENCE, fit_plan, this_device

TIGHT, TIGHTER = 0.92, 0.82
"""Of the peak with all the memory that a step wants."""


def both(name: str, memory: int | None, here: mw.Cluster, given: dict[str, Any]) -> list[mw.Plan | str]:
    """By `mw.fit` and by `mw.plan`: the plan, or what is said where there is none."""
    model, batch = small_model(name)
    method, rest = given.get("method"), {key: value for key, value in given.items() if key != "method"}
    pins = [f"recompute={method}"] if method else []
    return [
        _outcome(lambda: fit_plan(model, batch, memory, device=here.devices[0], **given)),
        _outcome(lambda: mw.plan(model, batch, here, memory=memory, pins=pins, **rest)),
    ]


def _outcome(make: Callable[[], mw.Plan]) -> mw.Plan | str:
    try:
        return make()
    except PlanError as error:
        return str(error)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("llama", {}),
        pytest.param("gpt", {"compile": True}, marks=pytest.mark.full),
        ("resnet", {"optimizer": "sgd"}),
        ("llama", {"method": "full"}),
    ],
)
def test_fit_and_plan_find_the_same(name: str, given: dict[str, Any]) -> None:
    here = one_device_cluster(this_device())
    ample, planned = both(name, None, here, given)
    assert ample == planned
    assert isinstance(ample, mw.Plan)
    assert ample.microbatches == 1
    for part in (TIGHT, TIGHTER):
        limit = int(part * ample.predicted.peak_bytes)
        fitted, planned = both(name, limit, here, given)
        assert fitted == planned
        if isinstance(planned, mw.Plan):
            assert planned.predicted.peak_bytes <= limit
            assert planned.predicted.step_s >= ample.predicted.step_s * (1 - 1e-12)


def test_on_a_gpu_that_is_not_here_too() -> None:
    gpu = one_device_cluster(GPUS[REFERENCE].device)
    ample, planned = both("gpt", None, gpu, {"precision": "bf16"})
    assert ample == planned
    assert isinstance(ample, mw.Plan)
    limit = ample.predicted.peak_bytes
    fitted, planned = both("gpt", limit, gpu, {"precision": "bf16"})
    assert fitted == planned
    assert isinstance(planned, mw.Plan)
    assert planned.predicted.peak_bytes <= (room_bytes(limit, gpu.devices[0]) or 0)


def test_a_tight_plan_is_saved_and_trains_as_the_model_does(tmp_path: Path) -> None:
    model, batch = small_model("llama", "float64")
    true, _ = small_model("llama", "float64")
    free = mw.plan(model, batch)
    plan = mw.plan(model, batch, memory=int(TIGHTER * free.predicted.peak_bytes))
    assert plan.recomputes or plan.microbatches > 1
    plan.save(tmp_path / "plan.json")
    trainer = mw.parallelize(model, mw.Plan.load(tmp_path / "plan.json"), device="cpu")
    loss = true(**batch)
    loss.backward()
    torch.testing.assert_close(trainer.step(batch), loss.detach(), rtol=1e-12, atol=0.0)
    found = dict(trainer.named_parameters())
    for name, parameter in true.named_parameters():
        torch.testing.assert_close(found[name].grad.full_tensor(), parameter.grad, rtol=1e-8, atol=1e-12)  # type: ignore[union-attr]
