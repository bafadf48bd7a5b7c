"""The survey's searchers for stages (`bench/stage_searchers.py`) find pipelines that can run."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "bench"))
from stage_methods import instance
from stage_rows import solve
from stage_searchers import METHODS, propose


@pytest.mark.parametrize("seed", [2, pytest.param(5, marks=pytest.mark.full)])
@pytest.mark.parametrize("method", METHODS)
def test_a_searcher_finds_what_can_run(method: str, seed: int) -> None:
    problem = instance(seed)
    best = solve(problem, budget=24)
    found = solve(problem, budget=24, propose=partial(propose, method))
    assert best is not None
    assert found is not None
    assert best.bound_s * (1 - 1e-9) <= found.step_s <= 1.5 * best.step_s
    assert found.bound_s <= best.step_s
    assert not found.proven
