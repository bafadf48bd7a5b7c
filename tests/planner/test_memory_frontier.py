"""The time-memory curve: more memory is never slower, less never predicts less, and no known way beats it."""

from __future__ import annotations

import itertools

import pytest
from small_models import small_model

from meshwright.capture import capture
from meshwright.cli.frontier_plot import svg, table, text_plot
from meshwright.cluster import load_cluster
from meshwright.explain.memory_curve import one_device_frontier
from meshwright.explain.recipes import baselines
from meshwright.planner.memory.methods import chen
from meshwright.planner.one_device import ALIKE, fit_curves
from meshwright.planner.plan import make_plan


def test_the_curve_is_monotone_and_the_known_ways_lie_above_it() -> None:
    mesh = load_cluster("local:1").mesh((1,)).renamed(("rep",))
    program = capture(*small_model("llama"))
    curve = one_device_frontier(program, mesh, optimizer="adamw", precision="fp32", compiled=False, points=5)
    assert len(curve.ours) > 3
    for more, less in itertools.pairwise(curve.ours):
        assert less.peak_bytes < more.peak_bytes
        assert less.step_s >= more.step_s
    point = curve.ours[len(curve.ours) // 2]
    plan = make_plan(program, load_cluster("local:1"), memory_bytes=point.peak_bytes)
    assert plan.predicted.step_s == pytest.approx(point.step_s)  # what `plan` answers there
    names = {point.name for point in curve.others}
    assert {"keep all", "full per-block", "selective", "Chen's square root"} <= names
    fastest, smallest = curve.ours[0], curve.ours[-1]
    for point in curve.others:
        assert point.step_s >= fastest.step_s * (1 - 1e-9)
        assert point.peak_bytes >= smallest.peak_bytes
    shown = table(curve, mesh.device) + text_plot(curve) + svg(curve, "a <title>")
    assert all(name in shown for name in names)
    assert "a &lt;title&gt;" in shown


def test_the_known_ways_cast_weights_and_wait_for_the_host_too() -> None:
    program, cluster = capture(*small_model("llama"), precision="mixed"), load_cluster("h100:1")
    curve = one_device_frontier(
        program, cluster.mesh((1,)), optimizer="adamw", precision="mixed", compiled=False, points=2
    )
    assert len(curve.others) > 3
    assert all(point.step_s >= curve.ours[0].step_s * (1 - 1e-9) for point in curve.others)
    known = {point.name: point for point in curve.others}
    for name, method in {"Chen's square root": "sqrt", "full per-block": "full"}.items():  # each is a plan one can have
        plan = make_plan(program, cluster, precision="mixed", pins=("microbatch=1", f"recompute={method}")).predicted
        assert (known[name].peak_bytes, known[name].step_s) == (plan.peak_bytes, pytest.approx(plan.step_s))


@pytest.mark.full
def test_full_checkpointing_that_does_not_fit_is_the_fastest_of_those_that_need_least() -> None:
    program, cluster = capture(*small_model("llama"), precision="mixed"), load_cluster("h100:1")
    rows = {row.name: row for row in baselines(program, cluster, precision="mixed", memory_bytes=1 << 20)}
    full, device = rows["full checkpointing"], cluster.devices[0]  # the fastest of those that need about the least
    every = [fit_curves(program, device, precision="mixed", microbatches=n).within(None, "full") for n in (1, 2, 3, 6)]
    least = min(one.predicted.peak_bytes for one in every)
    near = [one.predicted.step_s for one in every if one.predicted.peak_bytes <= least * (1 + ALIKE)]
    assert (full.fits, full.step_s) == (False, pytest.approx(min(near)))


def test_chens_order_runs_every_segment_forward_twice_but_the_last_group() -> None:
    moves = chen(9)
    assert [move.segment for move in moves if move.kind == "pass"] == list(range(6))
    assert [move.segment for move in moves if move.kind == "backward"] == list(reversed(range(9)))
