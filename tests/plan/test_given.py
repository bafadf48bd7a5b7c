"""What is given in Python and is of another type is refused in one message."""

from __future__ import annotations

from typing import Any

import pytest
from small_models import small_model

import meshwright as mw
from meshwright.cluster import load_cluster
from meshwright.plan import Plan
from meshwright.solve.plan import make_plan


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(mw.capture(*small_model("llama")), load_cluster("local:1"))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"pins": [4]}, "pin 4 is no text"),
        ({"pins": [None]}, "pin None is no text"),
        ({"pins": 4}, "pins=4"),
        ({"pins": None}, "pins=None"),
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
