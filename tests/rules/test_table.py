"""Every rule of the table is executed: every strategy, on one axis of 2 and of 3 and on a 2x2 mesh."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from rule_cases import FAMILIES, cases, rule_key, tolerance

from meshwright.cluster import logical_mesh
from meshwright.rules import strategies
from meshwright.rules.strategies import prove
from meshwright.rules.table import RULES, UNPROVEN

MESHES = ({"x": 2}, {"x": 3}, {"x": 2, "y": 2})


def proofs() -> Iterator[Any]:
    """Of matrix products, whose strategies combine in most ways, on all; the others on three ranks, and on two and on
    two axes in the full matrix."""
    for family in FAMILIES:
        for mesh in MESHES:
            marks = () if mesh == {"x": 3} or family == "matmul" else pytest.mark.full
            yield pytest.param(family, mesh, id=f"{family}-{mesh}", marks=marks)


@pytest.mark.parametrize(("family", "mesh"), list(proofs()))
def test_every_strategy_equals_the_unsharded_op(family: str, mesh: dict[str, int]) -> None:
    given = cases(family)
    assert sum(prove(case, logical_mesh(mesh), tolerance=tolerance(case)) for case in given) >= len(given)


def test_every_rule_has_a_case() -> None:
    covered = {rule_key(given) for family in FAMILIES for given in cases(family)}
    assert covered | set(UNPROVEN) == set(RULES)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_first_strategy_gives_no_axis_to_any_factor(family: str) -> None:
    for given in cases(family):
        first = strategies(given.op, given.values(), logical_mesh({"x": 2, "y": 2}))[0]
        assert first.text == "-,-"
        assert {str(layout) for layout in (*first.operands, *first.results)} <= {"[I, I]"}
