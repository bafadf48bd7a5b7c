"""Of a sharding, the fastest plan that fits: no set of kept values that fits is faster."""

from __future__ import annotations

import random
from math import inf

import pytest
import torch
from joint_oracle import every_kept
from test_joint_oracle import ROUNDING, Tiny, cluster_of
from torch import nn

from meshwright.capture import capture
from meshwright.capture.program import Program
from meshwright.plan import Plan
from meshwright.planner.chain.enumerate import TooManyError
from meshwright.planner.memory.enumerate import fastest_fitting
from meshwright.planner.plan import make_plan
from meshwright.predict import predict
from meshwright.predict.ways import with_choices

MOST = 500


def sharded(*kinds: str) -> tuple[Plan, Program]:
    """A small model on two devices, everything kept."""
    draw = random.Random(52)
    model = Tiny(draw, 2, 0)
    model.kinds = list(kinds)
    model.weights = nn.ModuleList(nn.Linear(2, 2, bias=False) for _ in range(1 + kinds.count("linear")))
    program = capture(model, {"x": torch.zeros(48, 2), "y": torch.zeros(48, 2)})
    return make_plan(program, cluster_of(draw, 2), pins=("pp=1", "microbatches=1"), headroom=0.0), program


@pytest.fixture(scope="module")
def sharding() -> tuple[Plan, Program]:
    """Of several segments."""
    return sharded("linear")


def test_no_set_of_kept_values_that_fits_is_faster() -> None:
    plan, program = sharded("relu", "mul", "relu")
    fastest: dict[int, float] = {}
    for chosen in every_kept(plan, program, MOST):
        asked = predict(with_choices(plan, chosen), program)
        fastest[asked.peak_bytes] = min(asked.step_s, fastest.get(asked.peak_bytes, inf))
    assert len(fastest) > 1
    for peak_bytes, step_s in fastest.items():
        found, bound_s = fastest_fitting(plan, program, peak_bytes, inf, MOST, flat=True)
        assert found is not None
        assert found.predicted.peak_bytes <= peak_bytes
        assert found.predicted.step_s <= step_s * (1 + ROUNDING)
        assert bound_s == pytest.approx(found.predicted.step_s, rel=ROUNDING)


def test_what_is_slower_than_the_limit_is_not_looked_at(sharding: tuple[Plan, Program]) -> None:
    plan, program = sharding
    step_s, peak_bytes = plan.predicted.step_s, plan.predicted.peak_bytes
    assert fastest_fitting(plan, program, peak_bytes, step_s * (1 - ROUNDING), MOST, flat=False) == (None, inf)


def test_an_order_that_runs_a_segment_again_is_bounded(sharding: tuple[Plan, Program]) -> None:
    """Where nothing else fits, one might: the bound is above the step with everything kept, and finite."""
    plan, program = sharding
    none, bound_s = fastest_fitting(plan, program, 0, inf, MOST, flat=False)
    assert none is None
    assert plan.predicted.step_s * (1 - ROUNDING) <= bound_s < inf
    assert fastest_fitting(plan, program, 0, inf, MOST, flat=True) == (None, inf)


def test_more_ways_than_are_looked_at_are_refused(sharding: tuple[Plan, Program]) -> None:
    with pytest.raises(TooManyError):
        fastest_fitting(*sharding, 0, inf, 2, flat=True)
