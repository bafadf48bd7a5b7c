"""Under tensor and data parallelism a recomputed segment gives the same, and pays its collectives again."""

from __future__ import annotations

import pytest
import torch
from captures import capture
from small_models import small_model
from torch import Tensor

from meshwright.cluster import load_cluster
from meshwright.generate.cut import cut, cut_at
from meshwright.generate.joint import trace
from meshwright.generate.pair import pair_of
from meshwright.generate.program import sharded_segments
from meshwright.layout.record import record
from meshwright.layout.threads import simulate
from meshwright.planner.plan import make_plan


@pytest.mark.parametrize(("pin", "more"), [("tp=2", True), ("dp=2", False)])
def test_recomputing_all_gives_the_same_on_every_rank(pin: str, more: bool) -> None:
    plan = make_plan(program := capture(*small_model("llama", "float64")), load_cluster("local:2"), pins=(pin,))
    joint = trace(sharded_segments(program, plan)[1])
    pairs = [pair_of(joint, cut_at(joint)), pair_of(joint, cut(joint, ()))]

    def rank(index: int) -> tuple[bool, list[int]]:
        torch.manual_seed(index)
        graph = joint.graph
        given = {v.name: torch.rand(v.type.sizes, dtype=torch.float64) for v in graph.arguments()}
        results: list[list[Tensor | None]] = []
        counts = []
        for pair in pairs:
            with torch.no_grad(), record() as log:
                outputs, _, saved = pair.forward(given)
                params = {value.name: given[value.name] for value in graph.params}
                inputs, weights = pair.backward(saved, params, [torch.full_like(out, 0.5) for out in outputs])
            results.append([*outputs, *inputs.values(), *weights.values()])
            counts.append(len(log))
        same = all(a is b or torch.equal(a, b) for a, b in zip(*results, strict=True))
        return same, counts

    for same, (kept, again) in simulate({plan.mesh.names[0]: 2}, rank):
        assert same
        assert again > kept if more else again == kept
