"""Mutants of every file and text that meshwright reads are read or refused in one message, and nothing else."""

from __future__ import annotations

import sys
from itertools import takewhile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))
from fuzz import fuzz, kinds


def test_some_mutants_of_everything_but_plans(tmp_path: Path) -> None:
    found = [fuzz(kind, 60, seed=1) for kind in takewhile(lambda kind: kind.name != "plan", kinds(tmp_path))]
    assert [str(one) for one in found if one.faults] == []
    assert all(one.refused for one in found if one.kind != "texts")


@pytest.mark.full
def test_mutants_of_everything(tmp_path: Path) -> None:
    found = [fuzz(kind, 3000) for kind in kinds(tmp_path)]
    assert [str(one) for one in found if one.faults] == []
