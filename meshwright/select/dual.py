"""Lower bounds for large cores: ascent on the dual  max over lambda >= 0 of  TRW(c + prices) - sum_r lambda_r limit_r.

Between two TRW-S passes (`kernels.trws`) the prices take a step (`priced.Steps`) for the choice the pass decodes. Any
prices and any messages give a valid bound; the best is kept, with its prices. Once passes alone gain little, short
cycles are added to the relaxation (`kernels.cycles`). Passes and cycles then share the time by what they gain.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from meshwright.select.kernels import rows, trws
from meshwright.select.kernels.arrays import Arrays
from meshwright.select.kernels.cycles import Cycles, push, tighten
from meshwright.select.priced import Steps, row_units
from meshwright.select.problem import Ints, join, running

PASSES = 5  # of a round
STALLED = 1e-3  # of the bound: where a round gains less, cycles are tried
CYCLE_SHARE = 4.0  # steps for cycles per step for passes
FORGET = 1.2  # growth per round of the rate of the other sort of round
LEAST_GAIN = 1e-8  # of the bound, counted for a round that gained nothing


@dataclass(slots=True)
class Rounds:
    """Decides whether the next round of passes begins with cycles, by what rounds of either sort gained per step."""

    never: bool = False  # no cycles
    with_cycles: bool = False
    known: float = -np.inf  # the bound when the round began
    steps: float = 0.0
    rates: list[float] = field(default_factory=lambda: [np.inf, np.inf])  # without cycles, with them

    def end(self, bound: float) -> bool:
        """Ends a round; returns whether the next one has cycles."""
        gain, least = bound - self.known, LEAST_GAIN * abs(bound)
        if not self.never and (self.with_cycles or gain < STALLED * abs(bound) or np.isfinite(self.rates[1])):
            self.rates[self.with_cycles] = max(gain, least) / max(self.steps, 1.0)
            self.rates[not self.with_cycles] *= FORGET
            self.with_cycles = self.rates[1] >= self.rates[0]
        self.known, self.steps = bound, 0.0
        return self.with_cycles


class Ascent:
    """The state of the ascent: messages, prices, the best bound with its prices, the last decoded choice."""

    def __init__(self, a: Arrays) -> None:
        self.a = a
        self.at = trws.message_at(a)
        self.messages = np.zeros(int(self.at[-1]))
        self.beliefs = np.zeros(len(a.costs))
        self.prices = Steps(a.limits, row_units(a.limits, a.bytes))
        self.usage = np.zeros(len(a.limits))
        self.total = np.zeros(len(a.limits) + 1)
        self.x: Ints = np.zeros(len(a.offsets) - 1, dtype=np.int64)
        self.bound = -np.inf
        self.best_price = self.prices.value
        self.passes = 0
        self.work = int((a.kinds * a.kinds[a.back]).sum() + 3 * (np.diff(a.start) * np.diff(a.offsets)).sum())
        self.cycles: Cycles | None = None
        self.next = 0  # the cycle to be visited next
        self.rounds = Rounds()

    def step(self) -> float:
        """One pass and one price step; before every few passes cycles, where these gain more than passes alone.
        Returns elementary steps done.
        """
        steps = 0.0
        if self.passes and self.passes % PASSES == 0:
            if self.rounds.end(self.bound) and self.cycles is None:
                self._add_cycles()
            if self.rounds.with_cycles:
                steps += self._tighten()
        steps += self._pass()
        self.rounds.steps += steps
        return steps

    def _add_cycles(self) -> None:
        self.cycles = cycles(self.a)
        if self.cycles is None:
            self.rounds = Rounds(never=True)
        else:
            self.a = own_tables(self.a)

    def _tighten(self) -> float:
        assert self.cycles is not None
        push(self.a, self.at, self.messages, self.beliefs)
        quota = CYCLE_SHARE * PASSES * self.work
        self.next, steps = tighten(self.a, self.at, self.messages, self.cycles, self.next, quota)
        return steps + self.work

    def _pass(self) -> float:
        price = self.prices.value
        rows.fill_running(price, self.total)
        value = trws.both_ways(self.a, self.at, self.messages, self.total, self.beliefs, self.x)
        value -= float((price * self.a.limits).sum())
        if value > self.bound:
            self.bound, self.best_price = value, price
        self.passes += 1
        rows.fill_usage(self.a, self.x, self.usage)
        self.prices.move(self.usage, max(abs(self.bound), 0.5 * abs(rows.total_cost(self.a, self.x))))
        return float(self.work + len(self.a.bytes) + len(price))


# A neighbour of a node is paired with fewer than so many that follow it.
NEIGHBOURS = 12
# Table entries of all cycles. Those with the smallest tables are taken.
ENTRIES = 50_000_000
# Products of matrices fill this many entries in the time of an elementary step.
PRODUCTS_PER_STEP = 4.0


def own_tables(a: Arrays) -> Arrays:
    """The same problem where no two edges share a table, so that each can be changed."""
    sizes = a.kinds * a.kinds[a.back]
    parts = [a.mats[begin : begin + size] for begin, size in zip(a.mat.tolist(), sizes.tolist(), strict=True)]
    return a._replace(mats=join(parts), mat=running(sizes)[:-1])


def cycles(a: Arrays) -> Cycles | None:
    """Triangles and cycles of four edges; None when there are none."""
    short = _short_cycles(a)
    entries = np.array([_entries(a, links) for links in short], dtype=np.int64)
    order = np.argsort(entries, kind="stable")
    kept = np.sort(order[np.cumsum(entries[order]) <= ENTRIES])
    found = [_cheapest_start(a, short[c]) for c in kept.tolist()]
    if not found:
        return None
    places = [_joint(a, link, links[t - 1]) for links in found for t, link in enumerate(links)]
    link = np.concatenate(found)
    table = running(a.kinds[link] * a.kinds[a.back[link]])
    return Cycles(
        start=running([len(links) for links in found]),
        link=link,
        first=running([len(ahead) for ahead, _ in places]),
        ahead=np.concatenate([ahead for ahead, _ in places]),
        behind=np.concatenate([behind for _, behind in places]),
        table=table[:-1],
        moved=np.zeros(table[-1]),
        work=np.array([_work(a, links) for links in found]),
    )


def _short_cycles(a: Arrays) -> list[list[int]]:
    """The links of a shortest cycle through each two edges at a node, where it has three or four edges."""
    near = [a.near[b:e].tolist() for b, e in zip(a.start[:-1].tolist(), a.start[1:].tolist(), strict=True)]
    link = {(i, j): int(a.start[i]) + k for i, others in enumerate(near) for k, j in enumerate(others)}
    sets = [set(others) for others in near]
    found: dict[frozenset[int], list[int]] = {}
    for i, others in enumerate(near):
        for low, j in enumerate(others):
            for k in others[low + 1 : low + NEIGHBOURS]:
                far = next((m for m in near[j] if m != i and m in sets[k]), None)
                if k in sets[j]:
                    ring = [i, j, k]
                elif far is not None:
                    ring = [i, j, far, k]
                else:
                    continue
                links = [link[p, q] for p, q in zip(ring, [*ring[1:], i], strict=True)]
                found.setdefault(frozenset(min(one, int(a.back[one])) for one in links), links)
    return list(found.values())


def _entries(a: Arrays, cycle: list[int]) -> int:
    return int((a.kinds[cycle] * a.kinds[a.back[cycle]]).sum())


def _joint(a: Arrays, link: int, before: int) -> tuple[Ints, Ints]:
    """The classes of options that `link` and the link `before` it tell apart at the node between them: the class of
    each as the one sees it and as the other does.
    """
    back = a.back[before]
    width = _width(a, link)
    ahead, behind = (a.classes[a.seen[each] : a.seen[each] + width] for each in (link, back))
    first, second = np.divmod(np.unique(ahead * width + behind), width)
    return first, second


def _width(a: Arrays, link: int) -> int:
    owner = a.near[a.back[link]]
    return int(a.offsets[owner + 1] - a.offsets[owner])


def _cheapest_start(a: Arrays, links: list[int]) -> list[int]:
    """The cycle from the place on from which a visit takes least."""
    return min((links[t:] + links[:t] for t in range(len(links))), key=lambda turned: _work(a, turned))


def _work(a: Arrays, links: list[int]) -> float:
    """Elementary steps of a visit: its products, and reading and writing its tables."""
    width = [float(_width(a, link)) for link in links]
    across = 1.0 if len(links) == 3 else 1.0 + width[3] / width[1]
    return 3.0 * width[0] * width[1] * width[2] * across / PRODUCTS_PER_STEP + 4.0 * _entries(a, links)
