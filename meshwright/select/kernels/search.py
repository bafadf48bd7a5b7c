"""Two searches over forests, with prices on the rows that get in the way.

`perturb` re-optimises forests that span most of the graph, with noise that cools down, whatever the rows say. Prices
rise where rows are overfull and fall where there is room. It crosses the limits again and again and keeps the best
choice that fits, so it finds a good region fast.

`local_search` anneals: it goes from one feasible choice to the next by small forests. When a forest's result
overfills rows, the worst row of every stretch of overfull rows gets a higher price and the forest is solved again.
When it fits, prices decay, so that room that became free is used.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from meshwright.select.kernels.arrays import Arrays
from meshwright.select.kernels.forest import Forest, grow, optimise, release, weigh
from meshwright.select.kernels.jit import jit
from meshwright.select.kernels.pairs import pair_cost
from meshwright.select.kernels.rows import fill_running, fill_usage, total_cost
from meshwright.select.problem import Floats, Ints


class State(NamedTuple):
    """A search: the current choice and its usage, the best choice, prices. scalars: current cost, best cost."""

    x: Ints
    best: Ints
    trial: Ints
    usage: Floats
    price: Floats
    unit: Floats  # per row: what a first price is
    total: Floats
    change: Floats
    scalars: Floats


def new_state(a: Arrays, x: Ints) -> State:
    rows = len(a.limits)
    state = State(
        x=x.copy(),
        best=x.copy(),
        trial=x.copy(),
        usage=np.zeros(rows),
        price=np.zeros(rows),
        unit=np.zeros(rows),
        total=np.zeros(rows + 1),
        change=np.zeros(rows + 1),
        scalars=np.array([np.inf, np.inf]),
    )
    fill_usage(a, state.x, state.usage)
    return state


@jit
def move_cost(a: Arrays, f: Forest, count: int, x: Ints, y: Ints) -> float:
    """Cost of y minus cost of x, which differ on the forest only."""
    change = 0.0
    for p in range(count):
        v = f.nodes[p]
        base = a.offsets[v]
        change += a.costs[base + y[v]] - a.costs[base + x[v]]
        for link in range(a.start[v], a.start[v + 1]):
            u = a.near[link]
            if f.place[u] < 0:
                change += pair_cost(a, link, y[v], x[u]) - pair_cost(a, link, x[v], x[u])
            elif u < v:
                change += pair_cost(a, link, y[v], y[u]) - pair_cost(a, link, x[v], x[u])
    return change


@jit
def mark_change(a: Arrays, f: Forest, count: int, x: Ints, y: Ints, change: Floats) -> tuple[int, int]:
    """Differences of the usage of y and x in `change` (to be summed up), and the first and last row touched."""
    low, high = len(a.limits), 0
    for p in range(count):
        v = f.nodes[p]
        if y[v] == x[v]:
            continue
        for m in range(a.item[v], a.item[v + 1]):
            size = a.bytes[a.first[m] + y[v]] - a.bytes[a.first[m] + x[v]]
            if size != 0.0:
                change[a.begin[m]] += size
                change[a.end[m]] -= size
                low = min(low, a.begin[m])
                high = max(high, a.end[m])
    return low, high


@jit
def apply_change(a: Arrays, s: State, low: int, high: int, reprice: bool) -> float:
    """Adds s.change to usage if every row fits (returns 0.0), else leaves usage alone and returns the worst excess
    relative to its limit; then, if asked, raises the price of the worst row of each stretch that is over.
    """
    worst = 0.0
    run = 0.0
    peak, where = 0.0, -1
    for r in range(low, high):
        run += s.change[r]
        over = s.usage[r] + run - a.limits[r]
        if over > 1e-12 * abs(a.limits[r]) and run > 0.0:
            if over > peak:
                peak, where = over, r
            worst = max(worst, over)
        elif where >= 0:
            if reprice:
                s.price[where] = s.price[where] * 1.3 + s.unit[where]
            peak, where = 0.0, -1
    if where >= 0 and reprice:
        s.price[where] = s.price[where] * 1.3 + s.unit[where]
    if worst == 0.0:
        run = 0.0
        for r in range(low, high):
            run += s.change[r]
            s.usage[r] += run
    return worst


@jit
def shift_usage(a: Arrays, f: Forest, s: State, count: int, x: Ints, y: Ints, reprice: bool) -> float:
    """Takes usage from that of x to that of y, if that fits; returns the worst excess, 0.0 when it did."""
    low, high = mark_change(a, f, count, x, y, s.change)
    over = apply_change(a, s, low, high, reprice)
    for r in range(low, high + 1):
        s.change[r] = 0.0
    return over


@jit
def propose(a: Arrays, f: Forest, s: State, count: int, noise: Floats, shift: int, heat: float) -> int:
    """The best options of the forest at present prices, in s.trial. Returns steps."""
    fill_running(s.price, s.total)
    steps = weigh(a, f, count, s.x) + len(s.price)
    return steps + optimise(a, f, count, s.total, noise, shift, heat, s.trial)


@jit
def decide(a: Arrays, f: Forest, s: State, count: int, allowed: float) -> None:
    """Makes s.trial, whose usage is in place already, the current choice if it costs at most `allowed` more."""
    change = move_cost(a, f, count, s.x, s.trial)
    if change > allowed:
        shift_usage(a, f, s, count, s.trial, s.x, False)
        return
    s.scalars[0] += change
    for p in range(count):
        v = f.nodes[p]
        s.x[v] = s.trial[v]
    if s.scalars[0] < s.scalars[1] - 1e-9 * abs(s.scalars[1]):
        s.scalars[1] = s.scalars[0]
        s.best[:] = s.x


@jit
def local_search(
    a: Arrays,
    f: Forest,
    s: State,
    rand: Floats,
    noise: Floats,
    quota: float,
    largest: int,
    heat: float,
    slack: float,
    decay: float,
) -> float:
    """Moves until `quota` steps are done or the random numbers are used up. Returns steps."""
    at = 0
    steps = 0.0
    n = len(s.x)
    while steps < quota and at + 4 * n + 64 < len(rand):
        size = 1 + int(min(largest, n) * rand[at] * rand[at])
        seeds = 1 + int(3.0 * rand[at + 1] * rand[at + 1])
        count, at = grow(a, f, size, seeds, rand, at + 2)
        over = 1.0
        attempts = 0
        while over > 0.0 and attempts < 4:
            shift = int(rand[at] * (len(noise) - len(a.costs)))
            steps += propose(a, f, s, count, noise, shift, heat)
            over = shift_usage(a, f, s, count, s.x, s.trial, True)
            at += 1
            attempts += 1
        if over == 0.0:
            decide(a, f, s, count, slack * noise[int(rand[at] * len(noise))])
            s.price[:] *= decay
        for p in range(count):
            s.trial[f.nodes[p]] = s.x[f.nodes[p]]
        release(a, f, count)
    return steps


@jit
def raise_prices(a: Arrays, s: State, up: float, down: float) -> float:
    """Prices for the usage of s.x: the worst row of each stretch that is over gets a higher one, rows with room a lower
    one. Returns the largest excess, 0.0 when every row fits.
    """
    fill_usage(a, s.x, s.usage)
    worst = 0.0
    peak, where = 0.0, -1
    for r in range(len(a.limits)):
        over = s.usage[r] - a.limits[r]
        if over > 1e-12 * abs(a.limits[r]):
            if over > peak:
                peak, where = over, r
            worst = max(worst, over)
        else:
            s.price[r] *= down
            if where >= 0:
                s.price[where] = s.price[where] * up + s.unit[where]
                peak, where = 0.0, -1
    if where >= 0:
        s.price[where] = s.price[where] * up + s.unit[where]
    return worst


@jit
def sweep(a: Arrays, f: Forest, s: State, rand: Floats, noise: Floats, at: int, heat: float) -> tuple[float, int]:
    """Re-optimises a forest that covers as much as it can at the prices in s.price; rows are not looked at. Returns
    steps and the next unused random number.
    """
    n = len(s.x)
    fill_running(s.price, s.total)
    shift = int(rand[at] * (len(noise) - len(a.costs)))
    count, at = grow(a, f, n, max(1, n // 40), rand, at + 1)
    steps = float(weigh(a, f, count, s.x))
    steps += optimise(a, f, count, s.total, noise, shift, heat, s.trial)
    for p in range(count):
        v = f.nodes[p]
        s.x[v] = s.trial[v]
    release(a, f, count)
    return steps, at


@jit
def perturb(
    a: Arrays, f: Forest, s: State, rand: Floats, noise: Floats, quota: float, heat: float, up: float, down: float
) -> float:
    """Sweeps until `quota` steps are done or the random numbers are used up. Prices rise where a sweep overfills
    rows and fall where it leaves room, so that choices cross the limits both ways; the best that fits is kept.
    Returns steps.
    """
    at = 0
    total = 0.0
    while total < quota and at + 4 * len(s.x) + 64 < len(rand):
        steps, at = sweep(a, f, s, rand, noise, at, heat)
        total += steps + len(s.price) + len(a.bytes)
        if raise_prices(a, s, up, down) == 0.0:
            cost = total_cost(a, s.x)
            if cost < s.scalars[1]:
                s.scalars[1] = cost
                s.best[:] = s.x
    return total
