"""What `meshwright explain` says of a plan agrees with itself."""

from __future__ import annotations

import re
from dataclasses import replace

from captures import capture
from small_models import small_model

from meshwright.cli.answer import details
from meshwright.cluster import load_cluster
from meshwright.explain.explain import explain
from meshwright.explain.recommend import recommendation
from meshwright.plan.units import show_bytes
from meshwright.planner.plan import make_plan
from meshwright.report.per_layer import at_peak


def test_a_plan_that_recomputes_may_be_bound_by_memory_though_some_is_free() -> None:
    program, cluster = capture(*small_model("gpt")), load_cluster("local:1")
    roomy = make_plan(program, cluster, pins=("microbatch=1",))
    assert "memory is not the bottleneck" in explain(roomy)
    assert "casting weights, adding gradients" in explain(roomy)
    limit = int(0.88 * roomy.predicted.peak_bytes)
    tight = make_plan(program, cluster, memory_bytes=limit, pins=("microbatch=1",))
    assert tight.recomputes
    assert "memory may be the bottleneck" in explain(replace(tight, memory_bytes=2 * limit, pins=()))
    assert "memory is not the bottleneck" in explain(replace(tight, memory_bytes=2 * limit, pins=("recompute=full",)))


def test_what_is_held_at_the_peak_adds_up_to_it() -> None:
    program = capture(*small_model("gpt"))
    plan = make_plan(program, load_cluster("local:2"), pins=("zero=3",))
    (held,) = at_peak(plan, program)
    assert sum(held.values()) == plan.predicted.peak_bytes
    assert "temporary buffers" in explain(plan, [held])


def test_weights_that_are_stored_alike_are_named() -> None:
    plan = make_plan(capture(*small_model("gpt")), load_cluster("local:2"), pins=("tp=2",))
    assert re.search(r"weights \(layers\.\*\.[\w.]+, .*\d+ more\): sharded", explain(plan))


def test_a_pipeline_has_one_account_of_its_peak() -> None:
    """In the details that `plan` prints and in `explain`."""
    program = capture(*small_model("gpt"))
    plan = make_plan(program, load_cluster("local:2"), pins=("pp=2",))
    held = at_peak(plan, program)
    fullest = max(held, key=lambda one: sum(one.values()))
    assert sum(fullest.values()) == plan.predicted.peak_bytes
    buffers = f"temporary buffers {show_bytes(fullest['temporary buffers'])}"
    assert buffers in details(plan, program)
    assert explain(plan, held).count(buffers) == 2  # of the fullest device, and of its stage


def test_the_host_memory_of_an_offload_plan_is_said() -> None:
    program, cluster = capture(*small_model("gpt")), load_cluster("h100:1")
    weights = sum(program.weight_bytes().values())
    for kind, copies in {"optimizer": 2, "weights": 4}.items():  # AdamW's two states; with weights and gradients
        plan = make_plan(program, cluster, pins=("microbatch=1", f"offload={kind}"))
        assert plan.predicted.host_bytes == copies * weights
        assert f"and {show_bytes(copies * weights)} of the host's memory" in recommendation(plan)[2]
        assert f"  {show_bytes(copies * weights)} of the host's memory for each device" in explain(plan).splitlines()
    assert make_plan(program, cluster, pins=("microbatch=1",)).predicted.host_bytes == 0


def test_a_prediction_is_short() -> None:
    plan = make_plan(capture(*small_model("gpt")), load_cluster("local:2"), pins=("zero=3",))
    assert len(plan.predicted.collectives) > 5
    assert len(repr(plan.predicted)) < 500
    assert repr(plan.predicted).startswith("<Prediction: step ")
