"""What a search relies on to leave numbers of micro-batches out: they take no less than a part of the first one's
bytes, and are no faster."""

from __future__ import annotations

from itertools import pairwise
from math import inf

import numpy as np
import pytest
from small_models import small_model

from meshwright.capture import capture
from meshwright.capture.experts import MIX
from meshwright.cluster import load_cluster
from meshwright.cutting import even_cuts
from meshwright.models.reference import parse_reference
from meshwright.planner.chain.lagrangian import chain_at, memory_free_bound_s, step_bound_s
from meshwright.planner.chain.shortest_path import least_cost
from meshwright.planner.effort import RETRIES
from meshwright.planner.plan import make_plan
from meshwright.planner.search import dual_bound as bounds
from meshwright.planner.search.dual_bound import DualBound, best_bound, search_nodes
from meshwright.planner.search.keep_all import MinBytes, in_proportion
from meshwright.planner.space.candidates import candidates_on
from meshwright.price.parameter import Setting


@pytest.mark.parametrize("name", ["llama", "moe"])
def test_more_micro_batches_are_no_faster_and_take_no_less_than_their_part(name: str) -> None:
    program = capture(*small_model(name)).at_batch(8)
    assert in_proportion(program)
    mesh = load_cluster("dgx-h100:1").mesh((2, 2), ranks=(0, 1, 2, 3))
    for candidate in candidates_on(program, [mesh], (), Setting()):
        made = {number: candidate.shardings(number) for number in candidate.microbatches}
        least = MinBytes.of(made[candidate.microbatches[0]])
        for number, shardings in made.items():
            assert least.bytes_at(number) <= shardings.least_held() + shardings.least_transient()
        floors = [memory_free_bound_s(shardings) for shardings in made.values()]
        assert all(one <= other * (1 + 1e-12) for one, other in pairwise(floors))


def test_on_cpus_the_fastest_number_of_micro_batches_is_found() -> None:
    """Smaller ones stay in caches: of all numbers, each pinned by itself, the plan is the fastest."""
    program = capture(*parse_reference("gpt?layers=1&hidden=256&heads=4&ffn=1024&vocab=1024&seq=128").meta(32))
    cluster = load_cluster("local:2")
    plan = make_plan(program, cluster, pins=("pp=1",), simpler_within=0.0)
    each = [make_plan(program, cluster, pins=("pp=1", f"microbatch={number}")) for number in even_cuts(32)]
    fastest = min(each, key=lambda one: one.predicted.step_s)
    assert plan.microbatches == fastest.microbatches > 1
    assert plan.predicted.step_s == pytest.approx(fastest.predicted.step_s, rel=1e-9)
    assert plan.predicted.step_s * (1 - plan.predicted.gap) <= fastest.predicted.step_s * (1 + 1e-9)


def test_what_the_host_has_to_ask_for_bounds_steps_that_wait_for_it() -> None:
    """A small model on GPUs: devices would be done in a part of the time, and the bound says so of no sharding."""
    program = capture(*small_model("llama")).at_batch(8)
    mesh = load_cluster("dgx-h100:1").mesh((2, 2), ranks=(0, 1, 2, 3))
    for candidate in candidates_on(program, [mesh], (), Setting()):
        for number in candidate.microbatches:
            shardings = candidate.shardings(number)
            bound_s = step_bound_s(shardings)
            assert bound_s > 2 * memory_free_bound_s(shardings)
            assert all(
                chain_at(shardings, price).seconds >= bound_s * (1 - 1e-12)
                for price in (0.0, *np.geomspace(1e-12, 1e-8, 7))
            )
    plan = make_plan(program, load_cluster("dgx-h100:1"), pins=("pp=1",))
    assert plan.predicted.gap == pytest.approx(0.0, abs=1e-9)


def test_numbers_above_one_that_is_near_the_best_without_a_limit_are_not_opened() -> None:
    """One bound stands for them, which none of them is below."""
    program = capture(*small_model("llama")).at_batch(8)
    mesh = load_cluster("dgx-h100:1").mesh((2, 2), ranks=(0, 1, 2, 3))
    candidates = candidates_on(program, [mesh], (), Setting())[:1]
    every = list(search_nodes(candidates, 1 << 40, inf))
    numbers = [entry.microbatches for entry in every]
    assert numbers == list(candidates[0].microbatches)
    assert len(numbers) > 2
    first, rest = search_nodes(candidates, 1 << 40, inf, cutoff_s=every[0].bound.seconds)
    assert first == every[0]
    assert rest.microbatches == numbers[1]
    assert all(rest.bound.seconds <= entry.bound.seconds * (1 + 1e-12) for entry in every[1:])
    assert len(list(search_nodes(candidates, 1 << 40, inf, every[0].bound.seconds * 1.01))) > 2, (
        "it may yet be the best"
    )


@pytest.mark.parametrize("start", [1e-13, *(pytest.param(start, marks=pytest.mark.full) for start in (0.0, 1e-9))])
def test_the_price_of_the_highest_bound_is_found_from_anywhere_in_few_questions(
    start: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = capture(*small_model("llama")).at_batch(8)
    mesh = load_cluster("dgx-h100:1").mesh((2, 2), ranks=(0, 1, 2, 3))
    candidate = candidates_on(program, [mesh], (), Setting())[0]
    shardings = candidate.shardings(1).recomputing()
    budget = int(0.85 * shardings.least_static() + 0.15 * chain_at(shardings, 0.0).peak_bytes)

    def at(price: float) -> float:
        return (least_cost(shardings, price * shardings.scale) / shardings.scale) - price * budget

    asked: list[float] = []
    monkeypatch.setattr(bounds, "least_cost", lambda *given: asked.append(given[1]) or least_cost(*given))
    first = DualBound(memory_free_bound_s(shardings), 0.0)
    found = best_bound([shardings], budget, inf, first, start)
    assert len(asked) <= RETRIES
    assert found.seconds == pytest.approx(at(found.price), rel=1e-12)
    every = max(map(at, np.geomspace(1e-13, 1e-8, 41)))
    assert first.seconds < found.seconds <= every * (1 + 1e-3)
    assert found.seconds >= every * (1 - 1e-2)
    less = best_bound([shardings], budget, first.seconds, first)
    assert less == first, "what is no better than what is known is not looked into"


def test_what_a_mixture_keeps_may_be_made_again_by_the_cheapest_of_its_ops() -> None:
    program = capture(*parse_reference("moe?layers=1&experts=4&vocab=64&seq=16").meta(8))
    mesh = load_cluster("dgx-h100:1").mesh((2,), ranks=(0, 1))
    shardings = candidates_on(program, [mesh], (), Setting())[0].shardings(1)
    spaces = [shardings.space(segment) for segment in program.segments]
    pairs = [(op, kept) for one in spaces for op, kept in zip(one.graph.ops, one.op_kept, strict=True)]
    mixed = [one for op, kept in pairs if op.target == MIX for one in kept]
    assert any(one.bytes.any() and one.drop_s == 0 for one in mixed)


@pytest.mark.full
def test_stages_of_any_number_of_devices_are_looked_at_without_a_pin() -> None:
    """A vocabulary of 50,257 is read fastest where five devices have parts of it: those are of whole vectors."""
    program = capture(*parse_reference("gpt2").meta(64), precision="mixed")
    given = {"memory_bytes": 4 << 30, "precision": "mixed", "simpler_within": 0.0}
    free, pinned = (make_plan(program, load_cluster("p3.16xlarge:1"), pins=pins, **given) for pins in ((), ("pp=2",)))
    assert free.predicted.step_s <= pinned.predicted.step_s
    assert free.predicted.step_s * (1 - free.predicted.gap) <= pinned.predicted.step_s
