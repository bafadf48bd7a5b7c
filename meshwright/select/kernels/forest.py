"""Exact re-optimisation of a random induced forest, everything else held fixed.

`grow` picks nodes so that each touches at most one picked before: the picked nodes induce a forest. `optimise` then
minimises, over all of them at once, node costs, prices, noise, edges inside and edges to the fixed rest, by dynamic
programming from the leaves up:

    m_v(t) = min_s [ w_v(s) + sum over children c of m_c(s) + E_v,parent(s, t) ].
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from meshwright.select.kernels.arrays import Arrays
from meshwright.select.kernels.jit import jit
from meshwright.select.kernels.pairs import add_pairs, fill_low, fill_message, spread
from meshwright.select.kernels.rows import add_prices
from meshwright.select.problem import Floats, Ints


class Forest(NamedTuple):
    """Working memory of one search; `nodes[:count]` is the forest, a parent always before its children."""

    nodes: Ints
    link: Ints  # per position: the link from the node to its parent, -1 for a root
    place: Ints  # per node: its position, -1 outside
    touch: Ints  # per node: how many picked nodes it is joined to
    queued: Ints
    queue: Ints
    weight: Floats  # per option: w plus the messages of children
    low: Floats  # per class of the node at hand: its least weight
    message: Floats  # per class of its parent


def new_forest(a: Arrays) -> Forest:
    blank = np.zeros(len(a.offsets) - 1, dtype=np.int64)
    most = int(a.kinds.max(initial=1))
    return Forest(
        nodes=blank.copy(),
        link=blank.copy(),
        place=blank - 1,
        touch=blank.copy(),
        queued=blank.copy(),
        queue=blank.copy(),
        weight=np.zeros(len(a.costs)),
        low=np.zeros(most),
        message=np.zeros(most),
    )


@jit
def grow(a: Arrays, f: Forest, size: int, seeds: int, rand: Floats, at: int) -> tuple[int, int]:
    """Picks up to `size` nodes from about `seeds` starting points; returns their count and the next unused random
    number.
    """
    n = len(f.nodes)
    count = 0
    share = max(1, size // seeds)
    tries = 0
    while count < size and tries < seeds * 4:
        tries += 1
        root = int(rand[at] * n)
        at += 1
        if f.place[root] >= 0 or f.touch[root] > 0:
            continue
        f.queue[0] = root
        f.queued[root] = 1
        waiting = 1
        goal = min(size, count + share)
        while waiting > 0 and count < goal:
            pick = int(rand[at] * waiting)
            at += 1
            v = f.queue[pick]
            waiting -= 1
            f.queue[pick] = f.queue[waiting]
            f.queued[v] = 0
            if f.touch[v] > 1:
                continue
            f.place[v] = count
            f.nodes[count] = v
            f.link[count] = -1
            count += 1
            for link in range(a.start[v], a.start[v + 1]):
                u = a.near[link]
                f.touch[u] += 1
                if f.place[u] >= 0:
                    f.link[count - 1] = link
                elif f.queued[u] == 0 and f.touch[u] == 1:
                    f.queue[waiting] = u
                    f.queued[u] = 1
                    waiting += 1
        for q in range(waiting):
            f.queued[f.queue[q]] = 0
    return count, at


@jit
def release(a: Arrays, f: Forest, count: int) -> None:
    """Forgets the forest."""
    for p in range(count):
        v = f.nodes[p]
        f.place[v] = -1
        for link in range(a.start[v], a.start[v + 1]):
            f.touch[a.near[link]] = 0


@jit
def weigh(a: Arrays, f: Forest, count: int, x: Ints) -> int:
    """weight = node costs plus edges to the fixed rest; returns the number of elementary steps."""
    steps = 0
    for p in range(count):
        v = f.nodes[p]
        own = f.weight[a.offsets[v] : a.offsets[v + 1]]
        own[:] = a.costs[a.offsets[v] : a.offsets[v + 1]]
        for link in range(a.start[v], a.start[v + 1]):
            u = a.near[link]
            if f.place[u] < 0:
                add_pairs(a, link, x[u], own)
        steps += len(own) * (a.start[v + 1] - a.start[v] + 1)
    return steps


@jit
def optimise(a: Arrays, f: Forest, count: int, total: Floats, noise: Floats, at: int, heat: float, y: Ints) -> int:
    """Writes the minimising options of the forest's nodes to y, for prices with running sum `total` and noise of size
    `heat`; `weigh` has been called and f.weight is used up. Returns the number of elementary steps.
    """
    steps = 0
    for q in range(count):
        p = count - 1 - q
        v = f.nodes[p]
        base = a.offsets[v]
        width = a.offsets[v + 1] - base
        add_prices(a, v, total, f.weight)
        if heat > 0.0:
            for s in range(width):
                f.weight[base + s] += heat * noise[at + s]
            at += width
        link = f.link[p]
        if link >= 0:
            steps += _send(a, f, v, link)
    for p in range(count):
        v = f.nodes[p]
        own = f.weight[a.offsets[v] : a.offsets[v + 1]]
        link = f.link[p]
        if link >= 0:
            add_pairs(a, link, y[a.near[link]], own)
        y[v] = own.argmin()
    return steps


@jit
def _send(a: Arrays, f: Forest, v: int, link: int) -> int:
    """Adds the message of v to the weights of its parent."""
    u, back = a.near[link], a.back[link]
    own, above = f.weight[a.offsets[v] : a.offsets[v + 1]], f.weight[a.offsets[u] : a.offsets[u + 1]]
    fill_low(a, link, own, f.low)
    fill_message(a, link, f.low, f.message)
    spread(a, back, f.message, above)
    return int(a.kinds[link] * a.kinds[back] + len(own) + len(above))
