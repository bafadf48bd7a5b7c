"""What is given in Python and is of another type is refused in one message."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small_models import small_model
from torch import nn

import meshwright as mw
from meshwright.cluster import load_cluster
from meshwright.models.reference import parse_reference
from meshwright.plan import Plan
from meshwright.planner.plan import make_plan


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(mw.capture(*small_model("llama")), load_cluster("local:1"))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"pins": [4]}, "pin 4 is no text"),
        ({"pins": [None]}, "pin None is no text"),
        ({"pins": 4}, "pins=4"),
        ({"cluster": None}, "a cluster given as None"),
        ({"cluster": 4}, "a cluster given as 4"),
    ],
)
def test_pins_and_clusters_of_another_type(given: dict[str, Any], said: str) -> None:
    model, batch = small_model("llama")
    with pytest.raises(mw.MeshwrightError) as caught:
        mw.plan(model, batch, **given)
    assert caught.value.given == said
    assert caught.value.expected
    assert caught.value.todo


@pytest.mark.parametrize("given", [None, 5, "x"])
def test_what_is_no_plan_or_program(plan: Plan, given: Any) -> None:
    name = type(given).__name__
    for asked, wanted in ((plan.price, "Program"), (plan.diff, "Plan")):
        with pytest.raises(mw.MeshwrightError, match=f"Plan.(price|diff) of a {name}") as caught:
            asked(given)
        assert wanted in caught.value.expected
        assert caught.value.todo


BATCH = (torch.empty(4, 8),)


def loss_of(made: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return (made - x).square().mean()


@pytest.mark.parametrize("call", [mw.plan, mw.capture, lambda *given, **more: mw.fit(*given, "1GiB", **more)])
@pytest.mark.parametrize(
    ("model", "batch", "loss", "said", "expected"),
    [
        (None, BATCH, None, "None as the model", "an nn.Module"),
        (nn.Linear, BATCH, loss_of, "the class Linear as the model", "an nn.Module"),
        (nn.Linear(8, 8), None, loss_of, "None as the batch", "a tensor"),
        (nn.Linear(8, 8), 5, loss_of, "an int as the batch", "a tensor"),
        (nn.Linear(8, 8), BATCH, "mse", "the text 'mse' as the loss", "a callable"),
        (nn.Linear(8, 8), BATCH, nn.MSELoss, "the class MSELoss as the loss", "a callable"),
    ],
)
def test_what_is_no_model_batch_or_loss(call: Any, model: Any, batch: Any, loss: Any, said: str, expected: str) -> None:
    with pytest.raises(mw.MeshwrightError) as caught:
        call(model, batch, loss=loss)
    assert caught.value.given == said
    assert caught.value.expected.startswith(expected)
    assert caught.value.todo


def test_paths_models_and_plans_that_are_none(plan: Plan) -> None:
    model: Any = None
    for call, said in (
        (lambda: Plan.load(model), "Plan.load of None"),
        (lambda: plan.save(model), "Plan.save of None"),
        (lambda: mw.parallelize(model, plan), "None as the model"),
        (lambda: mw.parallelize(nn.Linear(8, 8), model), "None as the plan"),
        (lambda: mw.profile(model), "a profile of None"),
    ):
        with pytest.raises(mw.MeshwrightError, match=said) as caught:
            call()
        assert caught.value.expected
        assert caught.value.todo


TINY = "gpt?layers=1&hidden=32&heads=2&ffn=64&vocab=64&seq=16"


def test_a_reference_is_a_model() -> None:
    found = mw.plan(TINY, cluster="local:2", global_batch=4)
    reference = parse_reference(TINY)
    model, batch, loss = reference.meta(4)
    other = mw.plan(model, batch, cluster="local:2", loss=loss)
    assert found.model == str(reference)
    assert (found.batch, found.predicted) == (4, other.predicted)
    assert mw.plan(TINY).batch == 8  # as `meshwright plan` has it


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"model": TINY, "batch": BATCH}, "a batch with the model"),
        ({"model": TINY, "loss": loss_of}, "a loss with the model"),
        ({"model": TINY, "global_batch": 0}, "global_batch 0"),
        ({"model": "gtp"}, "unknown model 'gtp'"),
        ({"model": nn.Linear(8, 8)}, "None as the batch"),
    ],
)
def test_a_model_and_what_it_is_planned_with(given: dict[str, Any], said: str) -> None:
    with pytest.raises(mw.MeshwrightError) as caught:
        mw.plan(**given)
    assert caught.value.given.startswith(said)
    assert caught.value.todo
