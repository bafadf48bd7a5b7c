"""Compute takes longer while gathers and reductions run beside it, on GPUs."""

from __future__ import annotations

import pytest

import meshwright as mw
from meshwright.capture.program import TensorType, Value
from meshwright.cluster import load_cluster
from meshwright.cluster.contention import OVER_NVLINK, OVER_OTHERS
from meshwright.plan import ParameterPlan
from meshwright.price.parameter import Setting, parameter_price


@pytest.mark.parametrize(
    ("cluster", "sizes", "share"),
    [
        ("h100:8", (8,), OVER_NVLINK),
        ("h100:4x8", (32,), OVER_OTHERS),
        ("local:4", (4,), 0.0),
    ],
)
def test_a_share_of_each_gather_and_reduction_is_added(cluster: str, sizes: tuple[int, ...], share: float) -> None:
    mesh = load_cluster(cluster).mesh(sizes)
    value = Value("weight", TensorType((4096, 4096), "bfloat16"), grad=True)
    entry = ParameterPlan("[S(0)]", "[R]", "float32", reshard_after_forward=True)
    price = parameter_price(value, entry, mesh, Setting(precision="mixed"))
    assert price.contended_s == pytest.approx(share * (price.gather_params_s + price.reduce_grads_s))
    assert price.total_s == pytest.approx(
        price.gather_params_s + price.reduce_grads_s + price.step_s + price.contended_s
    )


@pytest.mark.full
@pytest.mark.parametrize(("compiled", "how"), [(True, ()), (False, ("fused=off", "loss=eager"))])
def test_plan_and_price_agree(compiled: bool, how: tuple[str, ...]) -> None:
    """On llama3-8b under FSDP: whatever is hidden, both have it slow the compute that hides it. `price` takes chains of
    elementwise ops to be single kernels, as compiled plans have them."""
    pins = ("dp=8", "zero=3", "microbatch=1")
    plan = mw.plan("llama3-8b", cluster="h100:8", global_batch=8, precision="mixed", compile=compiled, pins=pins)
    price = mw.price("llama3-8b", "h100:8", ("zero=3", "micro_batch=1", *how))
    assert plan.predicted.step_s == pytest.approx(price.step_s, rel=0.02)
