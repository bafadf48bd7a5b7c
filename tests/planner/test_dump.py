"""`meshwright plan --dump-problem`: a problem of the planner as a file that `meshwright solve` reads."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from meshwright.capture import capture
from meshwright.cli import main
from meshwright.cluster import load_cluster
from meshwright.errors import PlanError
from meshwright.planner.dump import dump_problem
from meshwright.planner.plan import make_plan
from meshwright.select import ProblemBuilder, solve
from meshwright.select.contest import dump, load, split_intervals


def test_a_node_with_two_intervals_is_split_and_costs_the_same(tmp_path: Path) -> None:
    build = ProblemBuilder()
    one, other = build.node([1.0, 3.0]), build.node([1.0, 2.0])
    build.edge(one, other, np.array([[0.0, 1.0], [1.0, 0.0]]))
    rows = [build.row(10.0) for _ in range(3)]
    build.hold(rows[0], rows[-1] + 1, one, 0, 6.0)
    build.use(rows[1], one, 0, 3.0)
    build.use(rows[1], one, 0, 2.0)
    build.use(rows[1], other, 0, 1.0)
    problem = build.build()
    dump(split_intervals(problem), tmp_path / "problem.json")
    found, again = solve(problem, work=10.0), solve(load(tmp_path / "problem.json"), work=10.0)
    assert found.cost == again.cost == 5.0, "the cheaper choice of 4 needs 11 bytes in the second row"


@pytest.mark.full
def test_the_problem_of_a_plan_has_its_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))
    program = capture(model, {"input": torch.zeros(8, 16), "y": torch.zeros(8, 16)}, nn.functional.mse_loss)
    plan = make_plan(program, load_cluster("local:2"), pins=("pp=1", "microbatch=1"), simpler_within=0.0)
    path = tmp_path / "problem.json.gz"
    dump_problem(plan, program, str(path))
    for method in ("auto", "beam"):
        assert main(["solve", str(path), "--work", "20", "--method", method, "--json", "-"]) == 0
        cost = json.loads(capsys.readouterr().out)["cost"]
        assert cost > 0
        if method == "auto":
            best = cost
        assert cost >= best * (1 - 1e-9)


def test_a_problem_of_several_stages_is_refused(tmp_path: Path) -> None:
    model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(2)))
    program = capture(model, {"input": torch.zeros(8, 16), "y": torch.zeros(8, 16)}, nn.functional.mse_loss)
    plan = make_plan(program, load_cluster("local:2"), pins=("pp=2", "microbatch=1"))
    with pytest.raises(PlanError, match="of a plan of 2 stages"):
        dump_problem(plan, program, str(tmp_path / "p.json"))
