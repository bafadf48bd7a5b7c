"""What the search for stages relies on to do less: what it leaves out is not chosen, and what it does not trace is the
same."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from small_models import small_model

from meshwright.capture import capture
from meshwright.cluster import load_cluster
from meshwright.models.reference import parse_reference
from meshwright.planner.pipeline.meshes import stage_meshes
from meshwright.planner.pipeline.sharded_chains import sharded_chains
from meshwright.planner.pipeline.shortlist import chosen_ports
from meshwright.planner.plan import make_plan
from meshwright.planner.space.long_lived import has_many_alive
from meshwright.predict.step import pipeline_predicted as predicted
from meshwright.predict.ways import stage_ways
from meshwright.price.parameter import Setting


@pytest.mark.full
def test_with_much_memory_prices_that_save_it_are_left_out_and_nothing_is_lost() -> None:
    program = capture(*parse_reference("unet").meta(4))
    assert has_many_alive(program)
    cluster, setting = load_cluster("local:4"), Setting().cut(program.batch, 2)
    stage = next(one for one in stage_meshes(cluster, (), None, sizes=[2]) if one.mesh.sizes == (2,))
    few = sharded_chains(program, 0, replace(stage, memory_bytes=1 << 50), setting, recompute=True)
    every = sharded_chains(program, 0, replace(stage, memory_bytes=1), setting, recompute=True)
    assert len(few) < len(every)
    roomy = [replace(stage, memory_bytes=1 << 50)]
    chosen = [[one.key for one in chosen_ports(found, roomy, 4, 2, inf)] for found in (few, every)]
    assert chosen[0] == chosen[1]


def test_segments_that_keep_all_are_counted_without_their_other_ways() -> None:
    program = capture(*small_model("gpt")).at_batch(4)
    plan = make_plan(program, load_cluster("local:2"), pins=("pp=2", "microbatch=2"))
    assert not plan.recomputes
    for stage in plan.stages:
        few, every = (stage_ways(plan, program, stage, few) for few in (True, False))
        assert [ways[0] for ways in few] == [ways[0] for ways in every]
        assert all(len(ways) == 1 for ways in few)
    assert any(len(ways) > 1 for stage in plan.stages for ways in stage_ways(plan, program, stage))


def test_a_step_is_the_same_whether_bytes_are_counted_exactly() -> None:
    program = capture(*small_model("gpt")).at_batch(4)
    plan = make_plan(program, load_cluster("local:2"), pins=("pp=2", "microbatch=2"))
    rough, exact = (predicted(plan, program, exact)[0].predicted.step_s for exact in (False, True))
    assert rough == exact == plan.predicted.step_s
