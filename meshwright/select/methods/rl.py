"""A policy-gradient searcher: an independent softmax policy per node, trained by REINFORCE with the batch mean as
baseline.

It sees no structure but the reward, so on problems with many forbidden pairs it mostly learns to avoid those; it is
here as the honest stand-in for learned placement, whose samples cost what a whole evaluation costs.
"""

from __future__ import annotations

import numpy as np

from meshwright.select.budget import Budget
from meshwright.select.methods.walk import Keeper, floor_bound
from meshwright.select.problem import Floats, Ints, Problem

SAMPLES = 16
RATE = 0.3


def search(problem: Problem, budget: Budget, seed: int) -> tuple[list[int], float, list[str]]:
    rng = np.random.default_rng(seed)
    keeper = Keeper(problem)
    owner = np.repeat(np.arange(problem.nodes), np.diff(problem.offsets))
    logits = _prior(problem, owner)
    batches = 0
    while problem.nodes and not budget.over():
        gumbel = -np.log(rng.standard_exponential((SAMPLES, len(logits))))
        picks = [_argmax(problem, logits + row) for row in gumbel]
        energy = np.array([_energy(problem, keeper, pick) for pick in picks])
        advantage = -(energy - energy.mean()) / (energy.std() + 1e-12)
        share = _softmax(problem, logits, owner)
        step = np.zeros(len(logits))
        for pick, gain in zip(picks, advantage, strict=True):
            step[problem.offsets[:-1] + pick] += gain
            step -= gain * share
        logits += RATE * step / SAMPLES
        batches += 1
        budget.charge(SAMPLES * (20_000 + 4 * len(logits)))
        budget.report("rl", cost=keeper.cost)
    keeper.offer(_argmax(problem, logits))
    return keeper.choice.tolist(), floor_bound(problem), [f"{batches} batches of {SAMPLES} samples"]


def _prior(problem: Problem, owner: Ints) -> Floats:
    """Prefers options that are cheap on their own; forbidden ones are never sampled."""
    least = np.minimum.reduceat(problem.costs, problem.offsets[:-1]) if problem.nodes else problem.costs
    finite = problem.costs[np.isfinite(problem.costs)]
    scale = float(finite.std()) + 1e-12 if finite.size else 1.0
    return np.where(np.isfinite(problem.costs), -(problem.costs - least[owner]) / scale, -1e9)


def _argmax(problem: Problem, value: Floats) -> Ints:
    top = np.maximum.reduceat(value, problem.offsets[:-1])
    owner = np.repeat(np.arange(problem.nodes), np.diff(problem.offsets))
    hit = np.flatnonzero(value == top[owner])
    _, first = np.unique(owner[hit], return_index=True)
    return hit[first] - problem.offsets[:-1]


def _softmax(problem: Problem, logits: Floats, owner: Ints) -> Floats:
    top = np.maximum.reduceat(logits, problem.offsets[:-1])
    weight = np.exp(logits - top[owner])
    return weight / np.add.reduceat(weight, problem.offsets[:-1])[owner]


def _energy(problem: Problem, keeper: Keeper, pick: Ints) -> float:
    """Log of cost plus forbidden pairs and excess, so that a sample far off does not drown the rest."""
    keeper.offer(pick)
    width = np.diff(problem.offsets)
    pairs = np.zeros(0)
    if problem.edges:
        a, b = problem.edge_nodes.T
        pairs = problem.edge_costs[problem.edge_offsets[:-1] + pick[a] * width[b] + pick[b]]
    costs = np.concatenate((problem.costs[problem.offsets[:-1] + pick], pairs))
    forbidden = np.count_nonzero(np.isinf(costs))
    over = np.maximum(problem.row_usage(pick) / np.maximum(problem.limits, 1.0) - 1.0, 0.0).max(initial=0.0)
    return float(np.log1p(np.abs(costs[np.isfinite(costs)].sum())) + 10.0 * forbidden / max(1, len(costs)) + over)
