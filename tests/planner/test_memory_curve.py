"""The curve of a segment: its bytes and peaks are those of the real pair, and its ends are keep all and keep inputs."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import small_model

sys.path.insert(0, str(Path(__file__).parents[1] / "profile"))
import itertools

from live_bytes import LiveBytes

from meshwright.capture import capture
from meshwright.capture.program import SegmentGraph
from meshwright.cluster import Device, load_cluster
from meshwright.cluster.enumerate import meshes
from meshwright.cost.traced.nodes import NodeCosts
from meshwright.cost.traced.storage import is_statistic
from meshwright.generate.cut import cut_at
from meshwright.generate.joint import Joint, trace
from meshwright.generate.pair import pair_of
from meshwright.generate.program import sharded_segments
from meshwright.planner.memory import curves
from meshwright.planner.one_device import fit_curves
from meshwright.remat.curve import RematPoint, fastest_way, kept_curve


def device() -> Device:
    return meshes(load_cluster("local:1"))[0].device


def curve(name: str, index: int) -> tuple[Joint, tuple[RematPoint, ...]]:
    joint = trace(capture(*small_model(name)).graphs[index].at(6))
    return joint, kept_curve(joint, NodeCosts(device()))


def measured(joint: Joint, kept: RematPoint) -> tuple[int, int, int]:
    """(resident bytes, forward peak, backward peak) of a real run; parameters and common values aside."""
    torch.manual_seed(1)
    graph = joint.graph
    given = {
        v.name: torch.rand(v.type.sizes) if v.type.is_float else torch.randint(0, 9, v.type.sizes)
        for v in graph.arguments()
    }
    pair = pair_of(joint, cut_at(joint, kept.recompute, kept.keep))
    inputs = {value.name: given.pop(value.name) for value in graph.inputs}
    updated = {buffer for buffer, _ in graph.updates}
    with torch.no_grad(), LiveBytes([tensor for name, tensor in given.items() if name not in updated]) as mode:
        given |= {name: tensor.clone() for name, tensor in inputs.items()}
        given |= {name: given[name].clone() for name in updated}
        outputs, updates, saved = pair.forward(given)
        forward_peak = mode.peak_bytes
        params = {value.name: given[value.name] for value in graph.params}
        gradients = [torch.full(output.shape, 0.5) for output in outputs]
        del outputs, updates, given
        resident = mode.live_bytes - sum(t.untyped_storage().nbytes() for t in gradients)
        mode.peak_bytes = mode.live_bytes
        results = pair.backward(saved, params, gradients)
        backward_peak = mode.peak_bytes
    assert results
    return resident, forward_peak, backward_peak


@pytest.mark.parametrize("name", ["gpt", "resnet", pytest.param("llama", marks=pytest.mark.full)])
@pytest.mark.parametrize("index", [0, 1, 2])
def test_bytes_and_peaks_are_those_of_the_real_pair(name: str, index: int) -> None:
    joint, points = curve(name, index)
    for kept in points:
        resident, forward_peak, backward_peak = measured(joint, kept)
        assert resident == kept.resident_bytes, kept.saved
        assert forward_peak == pytest.approx(kept.resident_bytes + kept.forward_transient_bytes, rel=0.01)
        assert backward_peak == pytest.approx(kept.resident_bytes + kept.backward_transient_bytes, rel=0.01)


@pytest.mark.parametrize("name", ["gpt", "llama", "resnet"])
def test_less_memory_takes_longer_and_the_ends_are_known(name: str) -> None:
    joint, points = curve(name, 1)
    assert points[0].recompute_s == 0
    assert points[0] == fastest_way(joint, NodeCosts(device()))
    for more, less in itertools.pairwise(points):
        assert less.resident_bytes < more.resident_bytes
        assert less.recompute_s > more.recompute_s
        assert less.seconds == pytest.approx(points[0].seconds + less.recompute_s, rel=1e-6)
    inputs = {value.name for value in (*joint.graph.inputs, *joint.graph.shared_values, *joint.graph.buffers)}
    statistics = {name for node, name in joint.names.items() if is_statistic(node)}
    assert set(points[-1].saved) <= inputs | statistics


def test_what_a_neighbour_keeps_anyway_costs_nothing() -> None:
    joint = trace(capture(*small_model("gpt")).graphs[0].at(6))
    costs = NodeCosts(device())
    alone, beside = (kept_curve(joint, costs, held) for held in ((), joint.graph.outputs))
    assert beside[0].resident_bytes <= alone[0].resident_bytes


def test_alike_segments_need_not_be_one_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two choices may come to the same on one rank."""
    program = capture(*small_model("gpt"))
    expected = fit_curves(program, device()).options

    def copied(*given: Any) -> tuple[SegmentGraph, ...]:
        return tuple(replace(graph) for graph in sharded_segments(*given))

    monkeypatch.setattr(curves, "sharded_segments", copied)
    assert fit_curves(program, device()).options == expected
