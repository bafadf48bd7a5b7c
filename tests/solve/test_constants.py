"""Numeric constants that steer the search: found in the source, each with its line in bench/ablation.py, never more."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

MOST = 120
"""A few more than there are; fewer is better."""


def ablation() -> ModuleType:
    spec = spec_from_file_location("ablation", Path(__file__).parents[2] / "bench" / "ablation.py")
    assert spec
    assert spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_no_constant_is_added_and_each_is_ablated() -> None:
    bench = ablation()
    found = bench.constants()
    assert len(found) <= MOST, "a new number steers the search: derive it, or take another one away"
    assert "solve.together.TOO_SLOW" in found
    for name, value in found.items():
        for other in bench.changed(value):
            assert other != value or value == 1, f"{name} is not changed by its ablation"


def test_numbers_that_steer_nothing_are_there() -> None:
    bench = ablation()
    names = {
        f"{'.'.join(path.relative_to(bench.PACKAGE.parent).with_suffix('').parts)}.{name}"
        for path in bench.PACKAGE.rglob("*.py")
        for name in bench._numeric(bench.ast.parse(path.read_text()))
    }
    assert set(bench.OTHERS) <= names
