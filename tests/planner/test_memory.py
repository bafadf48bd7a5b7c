"""Under a limit the plan fits, is never faster for it, and an impossible limit says what would do."""

from __future__ import annotations

import pytest
from small_models import small_model

from meshwright.capture import capture
from meshwright.cluster import load_cluster
from meshwright.errors import PlanError
from meshwright.planner.memory.refine import refine
from meshwright.planner.plan import make_plan


@pytest.mark.parametrize("name", ["narrow", pytest.param("llama", marks=pytest.mark.full)])
def test_less_memory_is_never_faster_and_always_kept(name: str) -> None:
    program = capture(*small_model(name))
    cluster = load_cluster("local:2")
    free = make_plan(program, cluster)
    before_s = free.predicted.step_s
    seen = {before_s}
    for share in (0.85, 0.65):
        limit = int(share * free.predicted.peak_bytes)
        try:
            plan = make_plan(program, cluster, memory_bytes=limit)
        except PlanError:
            break
        assert plan.predicted.peak_bytes <= limit
        assert plan.predicted.step_s >= before_s * (1 - 1e-12)
        assert 0 <= plan.predicted.gap < 1
        before_s = plan.predicted.step_s
        seen.add(plan.predicted.step_s)
    assert len(seen) > 1, "the limits must bind"


def test_a_batch_is_not_cut_where_making_values_again_is_faster() -> None:
    program, cluster = capture(*small_model("llama")), load_cluster("local:1")
    free = make_plan(program, cluster)
    limit = int(0.9 * free.predicted.peak_bytes)
    plan, cut = (make_plan(program, cluster, memory_bytes=limit, recompute=again) for again in (True, False))
    shard_first = refine(free, program, limit)
    assert shard_first is not None
    assert plan.predicted.step_s <= shard_first.predicted.step_s * (1 + 1e-9)
    assert plan.microbatches == 1 < cut.microbatches
    assert plan.predicted.step_s < 0.9 * cut.predicted.step_s


@pytest.mark.full
def test_an_impossible_limit_names_the_bytes_that_would_do() -> None:
    program, cluster = capture(*small_model("narrow")), load_cluster("local:2")
    with pytest.raises(PlanError, match=r"no plan fits in 1,000 bytes(.|\n)*expected: [\d,]+ bytes") as caught:
        make_plan(program, cluster, memory_bytes=1000)
    least = int(caught.value.expected.split(" bytes")[0].replace(",", ""))
    assert make_plan(program, cluster, memory_bytes=least).predicted.peak_bytes <= least
