"""Numeric constants that steer the search: found in the source, each with its line in bench/ablation.py, never more."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

MOST = 15
MOST_INSIDE = 0
"""As many as there are; fewer is better."""


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
    assert "planner.effort.OVERLAP_WEIGHTS" in found
    for name, value in found.items():
        for other in bench.changed(value):
            assert other != value or value == 1, f"{name} is not changed by its ablation"


def test_the_page_has_a_line_for_each_change() -> None:
    bench = ablation()
    page = (Path(__file__).parents[2] / "docs" / "constants.md").read_text()
    for name, value in bench.constants().items():
        module, _, word = name.rpartition(".")
        for other in bench.changed(value):
            before = bench._said(value) or "`default`"
            assert f"| `{word}` (`{module}`) | {before} | {bench._said(other, value)} |" in page


def test_no_number_inside_a_function_is_added() -> None:
    """A constant that is moved into a function steers as it did."""
    found = ablation().literals()
    assert sum(map(len, found.values())) <= MOST_INSIDE, f"a new number steers the search: {found}"


def test_literals_are_found_inside_functions_and_their_own_alone() -> None:
    bench = ablation()
    source = "@cached(maxsize=64)\ndef f(a, most=9):\n    def g():\n        return 7\n    return a[3:5] * 0.75 + most"
    assert bench._literals(bench.ast.parse(source).body[0]) == [9, 0.75]


def test_numbers_that_steer_nothing_are_there() -> None:
    bench = ablation()
    names = {
        f"{'.'.join(path.relative_to(bench.PACKAGE.parent).with_suffix('').parts)}.{name}"
        for path in bench.PACKAGE.rglob("*.py")
        for name in bench._numeric(bench.ast.parse(path.read_text()))
    }
    assert set(bench.OTHERS) <= names
