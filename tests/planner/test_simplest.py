"""Of steps that are equal the simplest is taken: fewer axes, fewer micro-batches, fewer ways of running segments."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from small_models import small_model

from meshwright.capture import capture
from meshwright.cluster import load_cluster
from meshwright.errors import PlanError
from meshwright.planner.effort import CLOSE, EFFORTS
from meshwright.planner.plan import make_plan
from meshwright.planner.search import keep_all as searching
from meshwright.planner.search.dual_bound import DualBound, SearchNode
from meshwright.planner.search.joint import _State, axes_of
from meshwright.planner.search.keep_all import Candidate, search
from meshwright.planner.space.candidates import candidates_on
from meshwright.price.parameter import Setting

Offer = tuple[int, dict[int, tuple[float, int]]]
"""Axes, and for each number of micro-batches (seconds, different ways)."""


def test_of_meshes_that_are_as_fast_the_one_of_fewer_axes_is_taken() -> None:
    program, cluster = capture(*small_model("gpt")).at_batch(8), load_cluster("local:4")
    shapes = ((2, 2), (4,))
    each = [search(candidates_on(program, [cluster.mesh(shape)], (), Setting()), 1 << 40) for shape in shapes]
    steps = [one.equals[0].chain.seconds for one in each]
    assert steps[0] == pytest.approx(steps[1], rel=1e-9)
    for order in (shapes, shapes[::-1]):
        meshes = [cluster.mesh(shape) for shape in order]
        found = search(candidates_on(program, meshes, (), Setting()), 1 << 40)
        assert found.best is not None
        assert found.best[1].mesh.sizes == (4,)
        assert found.best[0].seconds <= min(one.chain.seconds for one in found.equals) * (1 + CLOSE)


@pytest.mark.parametrize(
    ("reached_s", "price", "left"),
    [
        (1.01, 0.0, True),
        (1.14, 0.0, False),
        (float("inf"), 0.0, False),
        (1.14, 1e-9, True),
        (float("inf"), 1e-9, False),
    ],
)
def test_a_bound_without_memory_leaves_no_mesh_out_unless_reached(reached_s: float, price: float, left: bool) -> None:
    """The host's launches are a bound of all meshes alike, and say nothing about which of them is faster."""
    few, more = (
        SearchNode(DualBound(1.0, price), Candidate(name, (1,), Any, list, axes=axes), 1, weighed=True)
        for name, axes in (("4", 1), ("2x2", 2))
    )
    stages = SimpleNamespace(stages=(None,), mesh=SimpleNamespace(sizes=(4,)), predicted=SimpleNamespace(step_s=1.2))
    log = SimpleNamespace(stopped=lambda *_: None, pruned=lambda *_: None)
    task: Any = SimpleNamespace(effort=EFFORTS["default"], gap=0.0, simpler_within=0.005, method="auto", log=log)
    state = _State(task, stages, None, probed=[(reached_s, few, SimpleNamespace())])  # type: ignore[arg-type, list-item]
    assert state._is_left(more) == left
    assert not state._is_left(few)


@pytest.mark.parametrize(
    ("offers", "expected"),
    [
        pytest.param([(2, {1: (1.0, 3)}), (1, {1: (1.0, 9)})], (1, 1), id="axes"),
        pytest.param([(1, {1: (1 + 0.5 * CLOSE, 3), 2: (1.0, 3)})], (0, 1), id="micro-batches"),
        pytest.param([(1, {2: (1.0, 3)}), (1, {2: (1 - 0.1 * CLOSE, 5)})], (0, 2), id="ways"),
        pytest.param([(2, {1: (1.0, 3)}), (1, {1: (1 + 1.1 * CLOSE, 3)})], (0, 1), id="not as fast"),
        pytest.param(
            [(3, {1: (1.0, 3)}), (2, {1: (1 + 0.9 * CLOSE, 3)}), (1, {1: (1 + 1.8 * CLOSE, 3)})], (1, 1), id="no drift"
        ),
        pytest.param(
            [(1, {1: (1 + 0.9 * CLOSE, 3)}), (2, {1: (1.0, 3)}), (3, {1: (1 - 0.5 * CLOSE, 3)})],
            (1, 1),
            id="of the fastest",
        ),
    ],
)
def test_a_step_is_as_fast_as_the_fastest_but_for_a_part(
    offers: list[Offer], expected: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every candidate and every number of micro-batches could be the fastest here, and pays for memory."""
    monkeypatch.setattr(searching, "step_bound_s", lambda shardings: 0.9 * shardings.seconds)
    monkeypatch.setattr(searching, "solve_chain", lambda shardings, *_: (shardings.chain, shardings.seconds))
    monkeypatch.setattr(searching, "bound_at", lambda *_: 0.0)
    monkeypatch.setattr(searching, "in_proportion", lambda program: False)
    found = search([_candidate(*offer) for offer in offers], 1)
    assert found.simplest is not None
    assert (found.simplest.place, found.simplest.chain.microbatches) == expected
    assert found.bound_s == min(seconds for _, numbers in offers for seconds, _ in numbers.values())


def test_a_mesh_that_memory_made_slow_is_named_though_another_fits_without_paying(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second could be the fastest, and pays for memory: recomputation is then looked at there."""
    monkeypatch.setattr(searching, "step_bound_s", lambda shardings: 0.5 * shardings.seconds)
    monkeypatch.setattr(searching, "solve_chain", lambda shardings, *_: (shardings.chain, shardings.seconds))
    monkeypatch.setattr(searching, "in_proportion", lambda program: False)
    candidates = [_candidate(1, {1: (1.0, 3)}, price=0.0), _candidate(1, {1: (1.1, 3)})]
    found = search(candidates, 1)
    assert found.simplest is not None
    assert (found.simplest.place, found.tight) == (0, {1})


@pytest.mark.full
def test_a_plan_that_is_nearly_as_fast_and_simpler_is_taken_unless_turned_off() -> None:
    """Also where memory binds."""
    program, cluster, pins = capture(*small_model("narrow")), load_cluster("local:4"), ("pp=1", "microbatch=1")
    roomy = make_plan(program, cluster, pins=pins, simpler_within=0.0)
    budget = int(0.6 * roomy.predicted.peak_bytes)
    fastest = make_plan(program, cluster, memory_bytes=budget, pins=pins, simpler_within=0.0)
    simplest = make_plan(program, cluster, memory_bytes=budget, pins=pins, simpler_within=0.2)
    assert fastest.predicted.step_s <= simplest.predicted.step_s <= 1.2 * fastest.predicted.step_s
    assert axes_of(simplest) <= axes_of(fastest)
    assert max(fastest.predicted.peak_bytes, simplest.predicted.peak_bytes) <= budget


@pytest.mark.parametrize("given", [-0.1, 1.0])
def test_a_part_that_is_none_is_refused(given: float) -> None:
    program = capture(*small_model("gpt")).at_batch(8)
    with pytest.raises(PlanError, match="simpler_within"):
        make_plan(program, load_cluster("local:2"), simpler_within=given)


def _candidate(axes: int, numbers: dict[int, tuple[float, int]], price: float = 1.0) -> Candidate:
    made: dict[int, Any] = {}
    for number, (seconds, ways) in numbers.items():
        points = tuple(object() for _ in range(ways))
        chain = SimpleNamespace(seconds=seconds, points=points, price=price, microbatches=number)
        made[number] = _Fake(seconds, chain, number)
    shardings: Callable[..., Any] = made.__getitem__
    return Candidate("x", tuple(numbers), shardings, lambda: None, axes=axes)


class _Fake:
    """A ShardingModel of one chain."""

    program = SimpleNamespace(batch=1)

    def __init__(self, seconds: float, chain: Any, number: int) -> None:
        self.seconds, self.chain, self.setting = seconds, chain, SimpleNamespace(microbatches=number)

    def weighed(self, weight: float) -> Any:
        return self

    def nothing(self) -> int:
        return 0

    least_static = least_held = least_kept = least_transient = nothing
