"""Lowerings with collectives inside, on real gloo processes."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import pytest
from gloo_ranks import SLICE, prove_slice
from processes import GlooPool
from rule_cases import cases

from meshwright.cluster import logical_mesh
from meshwright.rules import strategies


@pytest.mark.parametrize(
    "sizes",
    [{"x": 2}, pytest.param({"x": 3}, marks=pytest.mark.full), pytest.param({"x": 2, "y": 2}, marks=pytest.mark.full)],
    ids=str,
)
def test_every_strategy_of_the_slice_holds_on_real_processes(
    ranks: Callable[[int], GlooPool], sizes: dict[str, int]
) -> None:
    world, mesh = prod(sizes.values()), logical_mesh(sizes)
    given = [case for family in SLICE for case in cases(family)]
    count = sum(len(strategies(case.op, case.values(), mesh)) for case in given)
    assert ranks(world).run(prove_slice, sizes) == [count] * world
