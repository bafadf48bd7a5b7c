"""One context owns what is remembered: nothing outlives a new rule, and threads that share it agree."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import meshwright as mw
from meshwright.caches import CACHES, Caches
from meshwright.cluster import load_cluster, logical_mesh
from meshwright.layout import Layout, conversion, path
from meshwright.planner.plan import make_plan
from meshwright.planner.reprice import reprice
from meshwright.rules.register import forget_rule
from meshwright.rules.rule import Lowering, Split

ROOT = Path(mw.__file__).parent
INNER = "aten.inner.default"
OWN = re.compile(r"@(lru_cache|cache)\b|_\w*(known|last)\w*: .* = (\{|\[|None)")


def test_clearing_forgets_all() -> None:
    caches, calls = Caches(), []

    @caches.memoized(maxsize=4)
    def double(value: int) -> int:
        calls.append(value)
        return 2 * value

    known = caches.own({"a": 1})
    assert [double(1), double(1), double(2)] == [2, 2, 4]
    caches.clear()
    assert double(1) == 2
    assert (calls, known, len(caches)) == ([1, 2, 1], {}, 2)


def test_no_module_has_a_cache_of_its_own() -> None:
    """Whatever belongs to a process group, an optimizer or a call under way is no cache, and weak or short-lived."""
    wrong = []
    for file in ROOT.rglob("*.py"):
        lines = file.read_text().splitlines()
        wrong += [f"{file.relative_to(ROOT)}: {line}" for line in lines if OWN.match(line)]
    assert wrong == []
    assert len(CACHES) > 20


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(256, 256))

    def forward(self, x: Tensor) -> Tensor:
        return torch.inner(x, self.weight).tanh()


def as_linear(split: Split) -> Lowering:
    """The same numbers, by an op that has other prices."""
    return Lowering(replace(split.local, target="aten.linear.default"))


@pytest.fixture
def _no_rule() -> Iterator[None]:
    yield
    forget_rule(INNER)


@pytest.mark.usefixtures("_no_rule")
def test_a_rule_registered_later_counts() -> None:
    """A pipeline's segments are remembered by model and choice: under another rule they must be priced anew."""
    program = mw.capture(nn.Sequential(Block(), Block()), torch.randn(64, 256), lambda y, input: y.square().mean())
    mw.register_rule(INNER, "m k, n k -> m n")
    plan = make_plan(program, load_cluster("dgx-h100:1"), pins=("pp=2", "dp=4", "microbatch=2", "schedule=1f1b"))
    mw.register_rule(INNER, "m k, n k -> m n", as_linear)
    later = reprice(plan, program).predicted
    mw.clear_caches()
    assert later == reprice(plan, program).predicted
    assert later.step_s != plan.predicted.step_s


def test_a_thread_finds_a_search_whole_that_another_is_in_the_middle_of(monkeypatch: pytest.MonkeyPatch) -> None:
    mesh, shape = logical_mesh({"a": 2, "b": 4}), (16, 16)
    source, target = Layout.parse("[S(0), S(1)]"), Layout.parse("[R, R]")
    truth = conversion(source, target, shape, 4, mesh)
    CACHES.clear()
    inside, edges = Event(), path._Graph.edges

    def slow(self: path._Graph, number: int) -> Any:
        if not inside.is_set():
            inside.set()
            time.sleep(0.3)  # the first node is settled and its edges are yet to be followed
        return edges(self, number)

    monkeypatch.setattr(path._Graph, "edges", slow)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(conversion, source, target, shape, 4, mesh)
        assert inside.wait(10)
        second = pool.submit(conversion, source, target, shape, 4, mesh)
        assert first.result() == second.result() == truth
