"""Cycles raise the bound of message passing and keep it below every choice."""

from __future__ import annotations

import numpy as np
import pytest
from select_oracle import enumerate_optimum, random_problem

from meshwright.select import Problem, ProblemBuilder
from meshwright.select.dual import Ascent, Rounds, cycles, own_tables
from meshwright.select.kernels.arrays import Arrays, lay_out
from meshwright.select.kernels.cycles import min_plus, push, tighten
from meshwright.select.kernels.rows import total_cost


def disagreeing_ring(nodes: int) -> Problem:
    """Neighbours on an odd ring want to differ: one pair must pay, the linear relaxation pays nothing."""
    build = ProblemBuilder()
    for _ in range(nodes):
        build.node([0.0, 0.0])
    for i in range(nodes):
        build.edge(i, (i + 1) % nodes, [[1.0, 0.0], [0.0, 1.0]])
    return build.build()


def four_ring() -> Problem:
    """Three neighbours want to agree and one pair to differ."""
    build = ProblemBuilder()
    for _ in range(4):
        build.node([0.0, 0.0])
    for i in range(4):
        build.edge(i, (i + 1) % 4, [[1.0, 0.0], [0.0, 1.0]] if i == 3 else [[0.0, 1.0], [1.0, 0.0]])
    return build.build()


def with_cycles(a: Arrays, passes: int = 40) -> Ascent:
    """An ascent in which cycles come before every few passes, whatever they gain."""
    ascent = Ascent(a)
    ascent.step()
    ascent.rounds = Always()
    for _ in range(passes):
        ascent.step()
    return ascent


class Always(Rounds):
    def end(self, bound: float) -> bool:
        self.with_cycles = not self.never
        return self.with_cycles


@pytest.mark.parametrize("problem", [disagreeing_ring(3), four_ring()], ids=["triangle", "four edges"])
def test_a_cycle_closes_the_gap_of_the_linear_relaxation(problem: Problem) -> None:
    assert with_cycles(lay_out(problem)).bound == pytest.approx(1.0)
    alone = Ascent(lay_out(problem))
    alone.rounds = Rounds(never=True)
    for _ in range(40):
        alone.step()
    assert alone.bound == pytest.approx(0.0)


def test_bounds_with_cycles_never_exceed_the_optimum_and_are_higher() -> None:
    higher = compared = 0
    for seed in range(400):
        problem = random_problem(seed, kind=("dense", "layers")[seed % 2])
        a, optimum = lay_out(problem), enumerate_optimum(problem)
        if not np.isfinite(optimum) or not np.isfinite(problem.limits).all() or cycles(a) is None:
            continue
        bound = with_cycles(a).bound
        assert bound <= optimum + 1e-9 * max(1.0, abs(optimum))
        alone = Ascent(a)
        alone.rounds = Rounds(never=True)
        for _ in range(40):
            alone.step()
        higher += bound > alone.bound + 1e-6
        compared += 1
    assert compared > 40
    assert higher > 10


def test_no_choice_costs_more_after_a_visit_than_before() -> None:
    rng = np.random.default_rng(0)
    visited = 0
    for seed in range(80):
        problem = random_problem(seed, kind="dense", rows=0)
        a = own_tables(lay_out(problem))
        found = cycles(a)
        if found is None:
            continue
        choices = [rng.integers(0, np.diff(problem.offsets)) for _ in range(20)]
        costs = [total_cost(a, x) for x in choices]
        ascent = Ascent(a)
        ascent.rounds = Rounds(never=True)
        for _ in range(3):
            ascent.step()
            push(a, ascent.at, ascent.messages, ascent.beliefs)
            tighten(a, ascent.at, ascent.messages, found, 0, float(found.work.sum()))
            for x, cost in zip(choices, costs, strict=True):
                assert total_cost(a, x) <= cost + 1e-9 * max(1.0, abs(cost))
        visited += 1
    assert visited > 20


def test_the_laid_out_problem_of_the_search_stays_as_it_was() -> None:
    problem = disagreeing_ring(3)
    a = lay_out(problem)
    before = a.mats.copy()
    ascent = with_cycles(a)
    assert (a.mats == before).all()
    assert ascent.a.mats is not a.mats


def test_a_tree_has_no_cycles() -> None:
    assert cycles(lay_out(random_problem(1, kind="tree"))) is None


@pytest.mark.parametrize("inner", range(1, 10))
def test_min_plus_products(inner: int) -> None:
    rng = np.random.default_rng(inner)
    a, b = rng.random((3, inner)), rng.random((inner, 5))
    assert min_plus(a, b) == pytest.approx((a[:, :, None] + b[None]).min(axis=1))


def test_rounds_go_on_with_what_gains_more_and_try_the_other_again() -> None:
    rounds = Rounds()
    rounds.steps = 1.0
    assert not rounds.end(100.0)  # the first passes gain all there is
    rounds.steps = 1.0
    assert rounds.end(100.0)  # passes have stalled
    bound, taken = 100.0, []
    for _ in range(200):
        bound += 1.0 if rounds.with_cycles else 0.001
        rounds.steps = 1.0
        taken.append(rounds.end(bound))
    assert 150 < sum(taken) < 200
