"""The solver's objective is the price, op by op; two exact methods agree on it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from small_models import NAMES, small_model

from meshwright.capture import capture
from meshwright.cluster import load_cluster
from meshwright.errors import PlanError
from meshwright.pins.pins import Pins
from meshwright.planner.chain.shortest_path import walk
from meshwright.planner.plan import make_plan
from meshwright.planner.sharding.eliminated import solve_segment
from meshwright.planner.sharding.model import ShardingModel
from meshwright.planner.sharding.segment import SegmentProblem
from meshwright.price.parameter import Setting
from meshwright.price.segment import price_segment
from meshwright.rules import strategies
from meshwright.select import solve


def frontier_of(name: str, shape: tuple[int, ...], setting: Setting | None = None) -> ShardingModel:
    mesh = load_cluster(f"local:{np.prod(shape)}").mesh(shape)
    return ShardingModel(capture(*small_model(name)), mesh, Pins(), setting or Setting())


@pytest.mark.parametrize("shape", [(2,), (3,), (2, 2)])
@pytest.mark.parametrize("name", NAMES)
def test_the_price_recomputed_op_by_op_is_the_objective(name: str, shape: tuple[int, ...]) -> None:
    agrees(frontier_of(name, shape), Setting())


def test_the_price_of_compiled_ops_is_the_objective() -> None:
    setting = Setting(compile=True)
    agrees(frontier_of("llama", (2,), setting), setting)


@pytest.mark.parametrize("precision", ["fp32", "mixed"])
def test_the_price_is_the_objective_in_micro_batches(precision: str) -> None:
    setting = Setting("momentum", precision, microbatches=3)
    agrees(frontier_of("llama", (2,), setting), setting)


def agrees(shardings: ShardingModel, setting: Setting) -> None:
    for index in range(len(shardings.program.graphs)):
        segment = next(segment for segment in shardings.program.segments if segment.graph == index)
        solved = solve_segment(SegmentProblem(shardings.space(segment)), 0.0, index)
        combinations = np.argwhere(np.isfinite(solved.costs))
        assert len(combinations) == solved.costs.size, "without pins every boundary layout can be had"
        for options in combinations[:: max(1, len(combinations) // 6)]:
            answer = solved.answer(tuple(options))
            fixed = shardings.space(segment).graph
            point = price_segment(fixed, answer.choice, answer.parameters, shardings.mesh, setting)
            assert point.seconds(setting.microbatches) == pytest.approx(answer.objective, rel=1e-9)


@pytest.mark.parametrize("shape", [(2,), (2, 2)])
@pytest.mark.parametrize("name", NAMES)
def test_highs_and_elimination_agree(name: str, shape: tuple[int, ...]) -> None:
    shardings = frontier_of(name, shape)
    for index in range(len(shardings.program.graphs)):
        segment = next(segment for segment in shardings.program.segments if segment.graph == index)
        problem = SegmentProblem(shardings.space(segment)).problem
        if len(shape) > 1 and problem.nodes > 20:
            continue  # HiGHS alone takes minutes there; the small graphs hold the two-axis terms
        by_tables = solve_segment(SegmentProblem(shardings.space(segment)), 0.0, index).costs.min()
        assert by_tables == pytest.approx(solve(problem, method="ilp").cost, rel=1e-6)


def test_the_chain_is_the_best_over_all_boundary_layouts() -> None:
    """Enumerate every combination of boundary layouts of a whole model; the walk finds the cheapest."""
    shardings = frontier_of("llama", (2,))
    assert not any(len(users) > 1 for users in shardings.uses.values()), "no tied weights"
    best = np.zeros(1)
    for index in range(len(shardings.program.segments)):
        costs = shardings.solve(index, 0.0).costs
        best = (best[:, None] + costs.reshape(len(best), -1)).min(axis=0)
    assert walk(shardings, 0.0)[0] == pytest.approx(float(best.min()))


def test_no_single_change_of_strategy_is_cheaper() -> None:
    """Every op of a chosen block, every other strategy it could have had: re-priced, none is below the choice."""
    program = capture(*small_model("llama"))
    plan = make_plan(program, load_cluster("local:2"), pins=("split=matmul",))
    index = 1
    graph = program.graph(program.segments[index]).at(plan.batch)
    choice = plan.choice(index)
    parameters = {v.name: plan.parameters[n] for v, n in zip(graph.params, program.segments[index].params, strict=True)}
    best = price_segment(graph, choice, parameters, plan.mesh, Setting()).seconds()
    tried = 0
    for op in graph.ops:
        for other in strategies(op, graph.values(), plan.mesh):
            if "linear" in op.target and other.text == "-":
                continue
            changed = replace(choice, strategies=choice.strategies | {op.name: other.text})
            assert price_segment(graph, changed, parameters, plan.mesh, Setting()).seconds() >= best * (1 - 1e-9)
            tried += 1
    assert tried > 40


class Angles(torch.nn.Module):
    """A table made by a matmul, of which no size can be cut into six."""

    frequencies: torch.Tensor

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.up = torch.nn.Linear(4, hidden)
        self.register_buffer("frequencies", torch.ones(1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        angles = self.frequencies @ torch.arange(4.0)[None]
        return (self.up(x * angles.cos()) ** 2).mean()


def test_matmuls_of_no_parameter_need_not_be_split() -> None:
    batch, cluster, pins = {"x": torch.randn(5, 4)}, load_cluster("local:6"), ("split=matmul", "mesh=6")
    plan = make_plan(capture(Angles(24), batch), cluster, pins=pins)
    assert "S(0)" in plan.parameters["up.weight"].compute
    with pytest.raises(PlanError, match=r"pin split=matmul, but linear \(up\) cannot be split over \(6,\)"):
        make_plan(capture(Angles(5), batch), cluster, pins=pins)


@pytest.mark.parametrize("name", ["gpt", *(pytest.param(name, marks=pytest.mark.full) for name in ("llama", "resnet"))])
def test_a_chosen_plan_is_at_least_as_fast_as_every_baseline(name: str) -> None:
    from meshwright.explain.recipes import baselines

    program = capture(*small_model(name))
    cluster = load_cluster("local:3")
    chosen = make_plan(program, cluster)
    possible = [other for other in baselines(program, cluster) if other.step_s is not None]
    assert len(possible) >= 7
    for other in possible:
        assert chosen.predicted.step_s <= (other.step_s or 0.0) * 1.001, other.name
    assert torch.is_grad_enabled()
