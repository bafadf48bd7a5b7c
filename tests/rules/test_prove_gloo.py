"""Lowerings with collectives inside, on real gloo processes."""

from __future__ import annotations

from math import prod
from pathlib import Path

import pytest
import torch.multiprocessing as mp
from gloo_ranks import SLICE, prove_slice
from rule_cases import cases

from meshwright.cluster import logical_mesh
from meshwright.rules import strategies


@pytest.mark.parametrize(
    "sizes",
    [{"x": 2}, pytest.param({"x": 3}, marks=pytest.mark.full), pytest.param({"x": 2, "y": 2}, marks=pytest.mark.full)],
    ids=str,
)
def test_every_strategy_of_the_slice_holds_on_real_processes(tmp_path: Path, sizes: dict[str, int]) -> None:
    world, counted = prod(sizes.values()), tmp_path / "proven"
    mp.spawn(prove_slice, (world, str(tmp_path / "store"), sizes, str(counted)), nprocs=world)
    given = [case for family in SLICE for case in cases(family)]
    mesh = logical_mesh(sizes)
    assert int(counted.read_text()) == sum(len(strategies(c.op, c.values(), mesh)) for c in given)
