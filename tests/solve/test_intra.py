"""The solver's objective is the price, op by op; two exact methods agree on it."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch
from small_models import NAMES, small_model

from meshwright.capture import capture
from meshwright.cluster import load_cluster
from meshwright.price.segment import price_segment
from meshwright.rules import strategies
from meshwright.solve.frontier import Frontier
from meshwright.solve.intra import Question, choose
from meshwright.solve.pins import Pins
from meshwright.solve.plan import make_plan


def questions(name: str, size: int) -> list[tuple[Frontier, int, Question]]:
    program = capture(*small_model(name))
    frontier = Frontier(program, load_cluster(f"local:{size}").mesh((size,), ("x",)), Pins(), "adamw")
    found = []
    before: list[tuple[object, ...]] = [()]
    for index, segment in enumerate(program.segments):
        after = frontier.boundaries(segment)
        found += [(frontier, index, Question(a, b)) for a, b in product(before, after)]  # type: ignore[arg-type]
        before = list(after)
    return found


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("name", NAMES)
def test_the_price_recomputed_op_by_op_is_the_objective(name: str, size: int) -> None:
    for frontier, index, question in questions(name, size)[::3]:
        segment = frontier.program.segments[index]
        answer = choose(frontier.space(segment), question, segment.graph)
        assert answer is not None
        graph = frontier.space(segment).graph
        point = price_segment(graph, answer.choice, answer.parameters, frontier.mesh, "adamw")
        assert point.total_s == pytest.approx(answer.objective, rel=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_highs_and_elimination_agree(name: str) -> None:
    for frontier, index, question in questions(name, 2)[::7]:
        segment = frontier.program.segments[index]
        costs = [
            answer.objective
            for method in ("ilp", "elimination")
            if (answer := choose(frontier.space(segment), question, segment.graph, method)) is not None
        ]
        assert len(costs) == 2
        assert costs[0] == pytest.approx(costs[1], rel=1e-7)


def test_no_single_change_of_strategy_is_cheaper() -> None:
    """Every op of a chosen block, every other strategy it could have had: re-priced, none is below the choice."""
    program = capture(*small_model("llama"))
    plan = make_plan(program, load_cluster("local:2"), pins=("split=matmul",))
    index = 1
    graph = program.graph(program.segments[index]).at(plan.batch)
    choice = plan.choice(index)
    parameters = {v.name: plan.parameters[n] for v, n in zip(graph.params, program.segments[index].params, strict=True)}
    best = price_segment(graph, choice, parameters, plan.mesh, "adamw").total_s
    tried = 0
    for op in graph.ops:
        for other in strategies(op, graph.values(), plan.mesh):
            if "linear" in op.target and other.text == "-":
                continue
            changed = replace(choice, strategies=choice.strategies | {op.name: other.text})
            assert price_segment(graph, changed, parameters, plan.mesh, "adamw").total_s >= best * (1 - 1e-9)
            tried += 1
    assert tried > 40


def test_a_chosen_plan_is_at_least_as_fast_as_every_baseline() -> None:
    from meshwright.solve.baselines import baselines

    for name in NAMES:
        program = capture(*small_model(name))
        cluster = load_cluster("local:3")
        chosen = make_plan(program, cluster)
        for other in baselines(program, cluster):
            assert other.plan is not None, other.why
            assert chosen.predicted.step_s <= other.plan.predicted.step_s * 1.001
    assert torch.is_grad_enabled()
