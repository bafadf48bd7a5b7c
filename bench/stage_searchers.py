"""Searchers of the auto-parallelism survey for pipeline stages, to compare with the dynamic programme.

`partial(propose, method)` is what `solve_stages(propose=...)` takes. None of them gives a lower bound.

beam       stage by stage from the end of the chain, the most promising of each length kept
recursive  bisection: devices halved, the chain cut where the halves' work is as their devices, and so on in each half
mcmc       a pipeline changed at random, the change kept or undone as in simulated annealing
mcts       Monte Carlo tree search over stages from the front, completed by bisection
rl         a policy over meshes and lengths, place by place, trained by policy gradient
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import exp, inf, log, sqrt
from random import Random

import numpy as np
from stage_skeletons import Devices, Skeleton, Trials, minus

from meshwright.planner.stages.bound import Bound
from meshwright.planner.stages.problem import PlacedRun
from meshwright.planner.stages.search import FIRST

TRIALS = 2000
WIDTH = 48
MOVES = 16384
"""A beam's width, and how many stages it looks at for each length: long chains have a narrower one."""

EXPLORE = 0.5
SAMPLES = 16
RATE = 0.5
SHIFTS = (-2, -1, 0, 1, 2)


def propose(method: str, bound: Bound, seed: int = 0) -> list[tuple[PlacedRun, ...]]:
    """The best few pipelines of a searcher, by the closed form."""
    made = Trials(bound, TRIALS)
    METHODS[method](made, Random(seed))
    return made.best(FIRST)


@dataclass(frozen=True, slots=True)
class _Suffix:
    """The last stages of a pipeline, from cut `begin` on."""

    begin: int
    left: Devices
    stages: Skeleton
    enter: int | None = None
    way_s: float = 0.0
    work_s: float = 0.0


def beam(trials: Trials, dice: Random) -> None:
    level = [_Suffix(trials.last, trials.problem.devices, ())]
    width = max(4, min(WIDTH, MOVES // (trials.last * len(trials.devices))))
    for _ in range(trials.problem.stage_limit):
        found: list[tuple[float, int, _Suffix]] = []
        for suffix in level:
            for begin in range(suffix.begin - 1, -1, -1):
                for mesh in range(len(trials.devices)):
                    longer = _longer(trials, suffix, begin, mesh)
                    if longer is None:
                        continue
                    if begin == 0:
                        trials.try_one(longer.stages)
                    found.append((_promise_s(trials, longer), len(found), longer))
            if trials.left <= 0:
                return
        level = [suffix for value, _, suffix in sorted(found, key=lambda entry: entry[:2])[:width] if value < inf]


def _longer(trials: Trials, suffix: _Suffix, begin: int, mesh: int) -> _Suffix | None:
    left = minus(suffix.left, trials.devices[mesh])
    if min(left) < 0:
        return None
    bound = trials.bound
    found = trials.stage(begin, suffix.begin, mesh, (len(suffix.stages) + 1, None), suffix.enter)
    if found is None:
        return None
    row, crossing_s = found
    own_s = float(bound.cross_s[row])
    return _Suffix(
        begin,
        left,
        ((suffix.begin, mesh), *suffix.stages),
        int(bound.made.enter[row]),
        max(bound.microbatches * own_s, own_s + crossing_s + suffix.way_s),
        max(suffix.work_s, float(bound.work_s[row])),
    )


def _promise_s(trials: Trials, suffix: _Suffix) -> float:
    """Lower bound on the step of all completions: the rest is spread evenly over the devices left."""
    devices, before = sum(suffix.left), trials.work[0] - trials.work[suffix.begin]
    if (suffix.begin == 0) != (devices == 0) and (suffix.begin or not trials.problem.idle):
        return inf
    rest_s = trials.bound.microbatches * before / devices if devices else 0.0
    return max(suffix.work_s, suffix.way_s, rest_s)


def recursive(trials: Trials, dice: Random) -> None:
    for skeleton in _bisected(trials, 0, trials.last, trials.problem.devices):
        trials.try_one(skeleton)


def _bisected(trials: Trials, begin: int, end: int, devices: Devices) -> list[Skeleton]:
    """At most four skeletons of a range on these devices: one stage, or halves that are bisected in turn."""
    known, key = trials.halved, (begin, end, devices)
    if key in known:
        return known[key]
    found: list[tuple[float, Skeleton]] = []
    for mesh, own in enumerate(trials.devices):
        if own != devices and (not trials.problem.idle or min(minus(devices, own)) < 0):
            continue
        rows = trials.rows(begin, end, mesh)
        if len(rows):
            found.append((float(trials.bound.cross_s[rows].min()), ((end, mesh),)))
    for part in _halves(trials, devices) if end - begin > 1 else ():
        cut = _cut_at(trials, begin, end, sum(part) / sum(devices))
        for one in _bisected(trials, begin, cut, part)[:2]:
            for other in _bisected(trials, cut, end, minus(devices, part))[:2]:
                found.append((max(_slowest_s(trials, begin, one), _slowest_s(trials, cut, other)), (*one, *other)))
    known[key] = [skeleton for _, skeleton in sorted(found)[:4]]
    return known[key]


def _halves(trials: Trials, devices: Devices) -> list[Devices]:
    """Halves of the devices: of all, of one type, and the sizes of meshes that are nearest to a half."""
    found = {tuple(have // 2 for have in devices)}
    found |= {tuple(have if i == kind else 0 for i, have in enumerate(devices)) for kind in range(len(devices))}
    near = sorted(
        (own for own in trials.of_devices if all(a <= b for a, b in zip(own, devices, strict=True))),
        key=lambda own: abs(sum(own) - sum(devices) / 2),
    )
    found |= set(near[:2])
    return sorted(part for part in found if 0 < sum(part) < sum(devices))


def _cut_at(trials: Trials, begin: int, end: int, share: float) -> int:
    target = trials.work[begin] - share * (trials.work[begin] - trials.work[end])
    return min(range(begin + 1, end), key=lambda cut: abs(trials.work[cut] - target))


def _slowest_s(trials: Trials, begin: int, skeleton: Skeleton) -> float:
    found = 0.0
    for end, mesh in skeleton:
        rows = trials.rows(begin, end, mesh)
        found = max(found, float(trials.bound.cross_s[rows].min()) if len(rows) else inf)
        begin = end
    return found


def mcmc(trials: Trials, dice: Random) -> None:
    starts = _bisected(trials, 0, trials.last, trials.problem.devices)
    at = next((one for one in starts if trials.try_one(one) < inf), starts[0] if starts else None)
    if at is None:
        return
    now_s, begun = trials.try_one(at), max(1, trials.left)
    while trials.left > 0:
        other = _changed(trials, at, dice)
        value_s = trials.try_one(other) if other is not None else inf
        warmth = 0.05 * max(0.02, trials.left / begun)
        worse = (value_s - now_s) / (now_s * warmth) if now_s < inf else 0.0
        if other is not None and value_s < inf and (worse <= 0 or dice.random() < exp(-worse)):
            at, now_s = other, value_s
        trials.left -= other is None


def _changed(trials: Trials, skeleton: Skeleton, dice: Random) -> Skeleton | None:
    """A random neighbour: a moved cut, other meshes of as many devices, a split stage, or two joined ones."""
    stages = list(skeleton)
    place = dice.randrange(len(stages))
    end, mesh = stages[place]
    kind = dice.choice(("cut", "cut", "meshes", "split", "join"))
    begin = stages[place - 1][0] if place else 0
    if kind == "split" and end - begin > 1:
        pair = trials.pairs.get(trials.devices[mesh])
        if pair:
            one, other = dice.choice(pair)
            stages[place : place + 1] = [(dice.randrange(begin + 1, end), one), (end, other)]
            return tuple(stages)
    if place + 1 == len(stages):
        return None
    after, following = stages[place + 1]
    total = tuple(a + b for a, b in zip(trials.devices[mesh], trials.devices[following], strict=True))
    if kind == "cut":
        stages[place] = (end + dice.choice((-3, -2, -1, 1, 2, 3)), mesh)
        return tuple(stages) if begin < stages[place][0] < after else None
    if kind == "meshes":
        one, other = dice.choice(trials.pairs[total])
        stages[place : place + 2] = [(end, one), (after, other)]
        return tuple(stages)
    if kind == "join" and total in trials.of_devices:
        stages[place : place + 2] = [(after, dice.choice(trials.of_devices[total]))]
        return tuple(stages)
    return None


@dataclass(slots=True)
class _Arm:
    visits: int = 0
    reward: float = 0.0
    onward: dict[tuple[int, int], _Arm] = field(default_factory=dict)


def mcts(trials: Trials, dice: Random) -> None:
    root, best_s = _Arm(), inf
    while trials.left > 0:
        path, left, arm = [root], trials.problem.devices, root
        prefix: list[tuple[int, int]] = []
        while True:
            begin = prefix[-1][0] if prefix else 0
            moves = _moves(trials, begin, left)
            if not moves:
                break
            new = [move for move in moves if move not in arm.onward]
            move = dice.choice(new) if new else max(moves, key=lambda one: _upper(arm, arm.onward[one]))
            arm = arm.onward.setdefault(move, _Arm())
            path.append(arm)
            prefix.append(move)
            left = minus(left, trials.devices[move[1]])
            if new:
                break
        at, found_s = prefix[-1][0] if prefix else 0, inf
        ends: list[Skeleton] = [()] if at == trials.last else _bisected(trials, at, trials.last, left)
        trials.left -= not ends
        for rest in ends[:2]:
            found_s = min(found_s, trials.try_one((*prefix, *rest)))
        best_s = min(best_s, found_s)
        for one in path:
            one.visits += 1
            one.reward += best_s / found_s if found_s < inf else 0.0


def _moves(trials: Trials, begin: int, left: Devices) -> list[tuple[int, int]]:
    return [
        (end, mesh)
        for end in range(begin + 1, trials.last + 1)
        for mesh, own in enumerate(trials.devices)
        if min(minus(left, own)) >= 0 and len(trials.rows(begin, end, mesh))
    ]


def _upper(arm: _Arm, other: _Arm) -> float:
    return other.reward / other.visits + EXPLORE * sqrt(log(arm.visits + 1) / other.visits)


def rl(trials: Trials, dice: Random) -> None:
    most = trials.problem.stage_limit
    meshes = np.zeros((most, len(trials.devices)))
    shifts = np.zeros((most, len(SHIFTS)))
    while trials.left > 0:
        drawn = [_drawn(trials, meshes, shifts, dice) for _ in range(SAMPLES)]
        values = np.array([min(trials.try_one(one[0]), 1e30) if one[0] else 1e30 for one in drawn])
        trials.left -= sum(not one[0] for one in drawn)
        score = -np.log(values)
        gains = (score - score.mean()) / (score.std() + 1e-12)
        for (_, picks), gain in zip(drawn, gains, strict=True):
            for place, (mesh, shift) in enumerate(picks):
                for table, pick in ((meshes, mesh), (shifts, shift)):
                    share = np.exp(table[place] - table[place].max())
                    table[place] -= RATE / SAMPLES * gain * share / share.sum()
                    table[place, pick] += RATE / SAMPLES * gain


def _drawn(
    trials: Trials, meshes: np.ndarray, shifts: np.ndarray, dice: Random
) -> tuple[Skeleton, list[tuple[int, int]]]:
    """A sample of the policy: meshes until the devices are used, and cuts by their devices' shares, shifted."""
    left, picks = trials.problem.devices, list[tuple[int, int]]()
    while len(picks) < len(meshes):
        able = [mesh for mesh, own in enumerate(trials.devices) if min(minus(left, own)) >= 0]
        if not able:
            break
        weights = [exp(meshes[len(picks), mesh]) for mesh in able]
        shift = dice.choices(range(len(SHIFTS)), [exp(value) for value in shifts[len(picks)]])[0]
        picks.append((dice.choices(able, weights)[0], shift))
        left = minus(left, trials.devices[picks[-1][0]])
    total = sum(sum(trials.devices[mesh]) for mesh, _ in picks)
    stages, begin, used = list[tuple[int, int]](), 0, 0
    for place, (mesh, shift) in enumerate(picks):
        used += sum(trials.devices[mesh])
        last = place + 1 == len(picks)
        if not last and begin + 1 >= trials.last:
            return (), picks
        cut = trials.last if last else _cut_at(trials, 0, trials.last, used / total) + SHIFTS[shift]
        begin = cut if last else min(max(cut, begin + 1), trials.last - 1)
        stages.append((begin, mesh))
    return tuple(stages), picks


METHODS: dict[str, Callable[[Trials, Random], None]] = {
    "beam": beam,
    "recursive": recursive,
    "mcmc": mcmc,
    "mcts": mcts,
    "rl": rl,
}
