"""Loops in printed code run what was unrolled, and printed code does not grow with depth."""

from __future__ import annotations

from typing import Any

import pytest
from captures import capture
from hypothesis import given
from hypothesis import strategies as st
from small_models import small_model

from meshwright.cluster import load_cluster
from meshwright.generate.rolled import comment_loops, python_loops
from meshwright.models.gpt import GPT
from meshwright.planner.plan import make_plan
from meshwright.report.code import code

LAYER = st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(0, 4), st.integers(0, 4))


def run(lines: list[str]) -> list[Any]:
    scope: dict[str, Any] = {"said": []}
    exec("\n".join(lines), {"say": lambda *words: scope["said"].append(words)}, scope)
    found: list[Any] = scope["said"]
    return found


@given(st.lists(LAYER, max_size=24), st.integers(1, 6), st.sampled_from([1, 2, -1]))
def test_loops_run_what_was_unrolled(calls: list[tuple[str, int, int]], times: int, step: int) -> None:
    blocks = [f'say("{name}.{number}.x", "{other}")' for name, number, other in calls]
    blocks += [f'say("l.{20 + step * n}", "[S(0)]", 3, "m{21 + step * n}")' for n in range(times)] * 2
    rolled = python_loops(blocks, lambda block, before: [before + block], "")
    assert run(rolled) == run(blocks)


def test_numbers_outside_of_quotes_do_not_become_loops() -> None:
    blocks = [f"say({n})" for n in range(9)]
    assert python_loops(blocks, lambda block, before: [before + block], "") == blocks


def test_comments_nest() -> None:
    lines = [f"forward {i} mb{m}" for m in range(4) for i in range(3)]
    assert comment_loops(lines) == ["for m = 0 to 3:", "  for i = 0 to 2:", "    forward {i} mb{m}"]


@pytest.mark.parametrize("pins", [("dp=2", "zero=3"), ("pp=2", "schedule=gpipe")])
def test_printed_code_does_not_grow_with_depth(pins: tuple[str, ...]) -> None:
    texts = []
    for layers in (8, 16):
        program = capture(GPT(layers, 48, 6, 96, 96, 12, tied=True), small_model("gpt")[1])
        texts.append(code(program, make_plan(program, load_cluster("local:2"), pins=pins)))
    assert abs(len(texts[0].splitlines()) - len(texts[1].splitlines())) <= 2
    assert "    for i in range(" in texts[1]
