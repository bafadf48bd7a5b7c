"""Ops that are compiled with their neighbours: what is left of their seconds, against compiled pairs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.capture import capture
from meshwright.capture.program import Program
from meshwright.cluster import load_cluster
from meshwright.cost.op.fused import fused_shares
from meshwright.models.reference import parse_reference
from meshwright.plan import FrontierPoint
from meshwright.planner.plan import make_plan
from meshwright.predict.pieces import stage_pieces
from meshwright.predict.ways import way_of

LLAMA = "llama?layers=2&hidden=1024&heads=8&kv_heads=8&ffn=2816&vocab=32000&seq=1024"
LAYER = 1


def seconds(point: FrontierPoint) -> tuple[float, float]:
    return point.forward_s, point.backward_input_s + point.backward_weight_s


@pytest.fixture(scope="module")
def program() -> Program:
    return capture(*parse_reference(LLAMA).meta(16), precision="bf16")


def test_a_layers_ops_take_what_its_compiled_pair_takes(program: Program) -> None:
    eager = make_plan(program, load_cluster("h200:2"), precision="bf16", pins=("tp=2", "microbatch=1"))
    plan = replace(eager, compile=True)
    pair = way_of(plan, program, plan.stages[0], LAYER, whole=True)
    by_ops, alone = (seconds(stage_pieces(one, program, 0)[LAYER].point) for one in (plan, eager))
    assert by_ops == pytest.approx((pair.forward_s, pair.backward_s), rel=0.05)
    assert alone[0] > 1.1 * by_ops[0]
    assert alone[1] > 1.1 * by_ops[1]


def test_what_fused_ops_hand_each_other_is_not_moved(program: Program) -> None:
    graph = program.graph(program.segments[LAYER])
    shares = fused_shares(graph.at(16))
    by_name: dict[str, set[float]] = {}
    for op in graph.ops:
        by_name.setdefault(op.target.split(".")[1], set()).add(round(shares[op.name], 2))
    assert by_name["linear"] == by_name["scaled_dot_product_attention"] == {1.0}
    assert by_name["silu"] == {0.5}, "what it reads is memory, what it makes is read by the product at once"
    assert 0.67 in by_name["mul"], "by the gate: one operand is in registers"
