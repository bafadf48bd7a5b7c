"""Meshes of three and four axes: all but two axes are given to samples, and the rest is as on two."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from processes import GlooPool
from small_models import small_model

from meshwright.capture import capture
from meshwright.cluster import load_cluster
from meshwright.layout import Layout
from meshwright.pins.meshes import allowed_meshes
from meshwright.pins.pins import Pins, pin_readings, with_roles
from meshwright.plan import Plan
from meshwright.planner.plan import make_plan
from meshwright.planner.sharding.model import ShardingModel
from meshwright.planner.space.candidates import candidates_on
from meshwright.price.parameter import Setting
from meshwright.price.segment import price_segment


def roles() -> Iterator[Any]:
    """A model, a mesh and one of the ways of giving its axes to samples."""
    yield from (pytest.param("llama", (2, 2, 2), number) for number in (0, 1))
    yield pytest.param("gpt", (2, 1, 2, 2), 3, marks=pytest.mark.full)


def test_of_one_sample_three_axes_split_something_else() -> None:
    """Where there are samples, one axis at least is theirs."""
    program, cluster = capture(*small_model("gpt")), load_cluster("dgx-h100:1")
    found = {}
    for batch in (1, 8):
        made = candidates_on(program.at_batch(batch), [cluster.mesh((8,)), cluster.mesh((2, 2, 2))], (), Setting())
        found[batch] = [one.shardings(1).pins.dp_axes for one in made if one.name == "2x2x2"]
    assert found == {1: [()], 8: [(0,)]}


@pytest.mark.parametrize(("name", "shape", "number"), list(roles()))
def test_the_price_recomputed_op_by_op_is_the_objective(name: str, shape: tuple[int, ...], number: int) -> None:
    """Conversions are priced on the axes that are left; the price from scratch takes them on all."""
    mesh = load_cluster("dgx-h100:2").mesh(shape, ranks=(0, 1, 2, 3, 8, 9, 10, 11))
    found = with_roles(Pins(), mesh)
    shardings = ShardingModel(capture(*small_model(name)).at_batch(16), mesh, found[number], Setting())
    for index in (0, 1, len(shardings.program.segments) - 1):
        solved = shardings.solve(index, 0.0)
        combinations = np.argwhere(np.isfinite(solved.costs))
        for options in combinations[:: max(1, len(combinations) // 4)]:
            answer = solved.answer(tuple(options))
            graph = shardings.problem(index).space.graph
            charged = {value.name: 1 for value in graph.params if value.name not in shardings.problem(index).tied}
            point = price_segment(graph, answer.choice, answer.parameters, mesh, Setting(), charged)
            tied = shardings.priced(index, answer).point.seconds(1) - point.seconds(1)
            assert point.seconds(1) + tied == pytest.approx(answer.objective, rel=1e-9)


def test_samples_go_over_all_axes_but_two() -> None:
    mesh = load_cluster("dgx-h100:2").mesh((2, 2, 4))
    assert [(pins.dp_axes, pins.model_axes) for pins in with_roles(Pins(), mesh)] == [
        ((0,), ()),
        ((1,), (0,)),
        ((2,), (0, 1)),
    ]
    alike = load_cluster("dgx-h100:1").mesh((2, 2, 2))
    assert [pins.dp_axes for pins in with_roles(Pins(), alike)] == [(0,)], "axes that are alike are one"
    assert with_roles(Pins(), load_cluster("dgx-h100:1").mesh((2, 4))) == [Pins()]


def test_samples_go_over_the_outermost_axes_that_divide_them() -> None:
    """Over inner ones where these do not; on a mesh that is pinned every choice is searched."""
    program, cluster = capture(*small_model("gpt")), load_cluster("dgx-h100:2")
    meshes = [cluster.mesh((16,)), cluster.mesh((4, 2, 2))]
    found = {}
    for batch in (8, 2):
        made = candidates_on(program.at_batch(batch), meshes, (), Setting())
        found[batch] = [one.shardings(1).pins.dp_axes for one in made if one.name == "4x2x2"]
    assert found == {8: [(0,)], 2: [(1,)]}
    assert len(candidates_on(program.at_batch(8), meshes[1:], (), Setting())) > 1


def test_three_axes_end_at_the_hosts_edges_unless_pins_speak_of_axes() -> None:
    """Of two hosts of eight 4x2x2 has an axis with one part inside a host and one between hosts."""
    cluster, every = load_cluster("dgx-h100:2"), {(2, 2, 4), (4, 2, 2)}
    found = {
        pins: {mesh.sizes for mesh in allowed_meshes(cluster, pins, 3) if len(mesh.sizes) == 3}
        for pins in ((), ("zero=3",), ("dp=4",))
    }
    assert found == {(): every - {(4, 2, 2)}, ("zero=3",): every - {(4, 2, 2)}, ("dp=4",): every}
    assert (8, 2) in {mesh.sizes for mesh in allowed_meshes(cluster, (), 3)}, "two axes may lie anywhere"


def test_a_pin_may_mean_either_axis_of_its_size() -> None:
    """tp=8 on 8x8: inside a host or across hosts, whichever is faster."""
    mesh = load_cluster("dgx-h100:8").mesh((8, 8))
    found = pin_readings(("tp=8", "mesh=8x8"), mesh)
    assert [pins.tp_axes for pins in found] == [(0,), (1,)]
    assert len(pin_readings(("tp=2",), load_cluster("dgx-h100:1").mesh((2, 2, 2)))) == 1, "all alike"


def test_more_axes_never_make_a_plan_slower() -> None:
    program = capture(*small_model("llama")).at_batch(8)
    cluster = load_cluster("dgx-h100:1")
    two, three = (make_plan(program, cluster, max_axes=n, pins=("split=matmul", "pp=1")) for n in (2, 3))
    assert three.predicted.step_s <= two.predicted.step_s * (1 + 1e-12)


def step(rank: int, name: str, plan_json: bytes) -> tuple[float, dict[str, torch.Tensor]]:
    from meshwright.runtime.trainer import parallelize

    model, batch = small_model(name, "float64")
    trainer = parallelize(model, Plan.from_json(plan_json))
    loss = trainer.step(batch, global_batch=True).item()
    return loss, {key: value.grad.full_tensor() for key, value in trainer.named_parameters()}


@pytest.mark.full
@pytest.mark.parametrize("name", ["gpt", "llama"])
def test_a_plan_on_three_axes_computes_what_the_model_does(name: str, ranks: Callable[[int], GlooPool]) -> None:
    model, batch = small_model(name, "float64")
    plan = make_plan(capture(model, batch), load_cluster("local:8"), pins=("mesh=2x2x2", "tp=2", "zero=3"))
    assert len(plan.mesh.axes) == 3
    assert any(Layout.parse(entry.compute)[axis].is_shard for entry in plan.parameters.values() for axis in range(3))
    true: Any = model(**batch)
    true.backward()
    for loss, gradients in ranks(8).run(step, name, plan.to_json()):
        assert loss == pytest.approx(true.item(), rel=1e-9)
        for key, value in model.named_parameters():
            assert torch.allclose(gradients[key], value.grad, rtol=1e-8, atol=1e-10), key
