"""Pipelines of the recipe table: stages of equal devices, everything kept, no search but the cuts."""

from __future__ import annotations

from functools import cache

import pytest

from meshwright.capture import capture
from meshwright.capture.program import Program
from meshwright.cluster import load_cluster
from meshwright.errors import PlanError
from meshwright.explain import pipeline_recipes
from meshwright.explain.pipeline_recipes import Baseline, pipelines
from meshwright.pins.stages import pipeline_pins
from meshwright.plan import Plan
from meshwright.planner.pipeline.search import PipelineSearch
from meshwright.planner.plan import make_plan
from meshwright.predict import predict
from meshwright.price.parameter import Setting
from tests.small_models import small_model

ROOM = 1 << 50


@cache
def program() -> Program:
    return capture(*small_model("llama")).at_batch(32)


def recipes(limit: int = ROOM, cut: tuple[str, ...] = ()) -> list[Baseline]:
    return pipelines(program(), load_cluster("local:4"), Setting(), limit, cut)


def searched(pins: tuple[str, ...]) -> Plan:
    cluster = load_cluster("local:4")
    plan = PipelineSearch(program(), cluster, None, Setting(), pipeline_pins(pins), recompute=False).finish()
    assert plan is not None
    assert predict(plan, program()).step_s == pytest.approx(plan.predicted.step_s, rel=1e-9)
    return plan


def test_no_recipe_is_faster_than_a_search_under_its_pins() -> None:
    recipe = recipes(cut=("microbatches=8",))[0]
    assert recipe.fits
    assert recipe.step_s is not None
    assert "microbatches=8" in recipe.pins
    step_s = searched(recipe.pins).predicted.step_s
    assert step_s <= recipe.step_s * (1 + 1e-9)
    assert recipe.step_s < 1.5 * step_s


def test_a_row_has_as_many_micro_batches_as_are_fastest() -> None:
    """Against every number by itself; the search has one start and climbs."""
    for place, row in enumerate(recipes()):
        each = [recipes(cut=(f"microbatches={n}",))[place].step_s for n in (1, 2, 4, 8, 16, 32)]
        assert row.step_s == min(step_s for step_s in each if step_s)


def test_micro_batches_that_data_parallel_ranks_do_not_share_are_no_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    """16 samples in 3 are 6, 6 and 4, which two stages of four devices each do not share."""
    two = capture(*small_model("narrow")).at_batch(16)
    fsdp, tp = pipelines(two, load_cluster("local:8"), Setting(), ROOM, ("microbatch=3",))
    assert fsdp.why == "micro-batches do not divide evenly over its data-parallel ranks"
    assert fsdp.step_s is None
    assert tp.step_s is not None, "its ranks all see every sample"
    monkeypatch.setattr(pipeline_recipes, "cut_batch", lambda *_: (8, 8))
    fsdp, _ = pipelines(two, load_cluster("local:8"), Setting(), ROOM, ("microbatch=3",))
    assert fsdp.step_s is None, "a search that is asked all the same finds that no way is left to run an op"


def test_layers_of_stages_can_be_pinned() -> None:
    plan = make_plan(program(), load_cluster("local:2"), pins=("layers=1+3", "microbatch=4"))
    assert [stage.end - stage.first for stage in plan.stages] == [1, 3]
    with pytest.raises(PlanError, match=r"layers=2\+2"):
        Plan.from_json(plan.to_json().replace(b"layers=1+3", b"layers=2+2"))
    with pytest.raises(PlanError, match="sum to 4"):
        make_plan(program(), load_cluster("local:2"), pins=("layers=1+2",))


def test_what_does_not_fit_is_cut_into_more_micro_batches() -> None:
    roomy = recipes()[0]
    assert roomy.peak_bytes is not None
    tight = recipes(limit=roomy.peak_bytes - 1)[0]
    assert tight.peak_bytes is not None
    assert tight.peak_bytes < roomy.peak_bytes
    none = recipes(limit=1)[0]
    assert not none.fits
    assert none.step_s is not None
