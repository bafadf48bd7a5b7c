"""Lower bounds by sequential tree-reweighted message passing (Kolmogorov's TRW-S) at given row prices.

With messages M_ij(t) the costs are rewritten without changing any total:

    D_i(s) = c_i(s) + p_i(s) + sum over neighbours j of M_ji(s),      E'_ij(s, t) = E_ij(s, t) - M_ij(t) - M_ji(s).

Nodes are visited in order and back. A visit averages D_i over the monotonic chains through i (gamma = 1 / the
larger of the numbers of earlier and later neighbours) and sends  M_ij(t) = min_s [ gamma D_i(s) - M_ji(s) + E_ij(s,
t) ]  onwards. On the way back the minima taken out of the D_i and of the messages add up to a lower bound that
never falls from pass to pass while prices stay. Less the priced limits, sum_r lambda_r limit_r, it bounds the
problem with rows (Lagrangian duality).
"""

from __future__ import annotations

import numpy as np

from meshwright.select.kernels.arrays import Arrays
from meshwright.select.kernels.jit import jit
from meshwright.select.kernels.rows import add_prices
from meshwright.select.problem import Floats, Ints


@jit
def message_at(a: Arrays) -> Ints:
    """Where the message along each link (towards its owner) begins; as long as the owner's options."""
    at = np.zeros(len(a.near) + 1, dtype=np.int64)
    for i in range(len(a.offsets) - 1):
        for link in range(a.start[i], a.start[i + 1]):
            at[link + 1] = at[link] + a.offsets[i + 1] - a.offsets[i]
    return at


@jit
def both_ways(a: Arrays, at: Ints, messages: Floats, total: Floats, beliefs: Floats, x: Ints) -> float:
    """One pass forth and one back. Returns the bound (priced limits not yet taken off), leaves D in `beliefs` and
    the options that minimise it given earlier nodes in x.
    """
    n = len(a.offsets) - 1
    for i in range(n):
        _gather(a, at, messages, total, beliefs, i)
        _send_on(a, at, messages, beliefs, i, True)
    bound = 0.0
    for q in range(n):
        i = n - 1 - q
        _gather(a, at, messages, total, beliefs, i)
        base = a.offsets[i]
        low = np.inf
        for s in range(a.offsets[i + 1] - base):
            low = min(low, beliefs[base + s])
        for s in range(a.offsets[i + 1] - base):
            beliefs[base + s] -= low
        bound += low + _send_on(a, at, messages, beliefs, i, False)
    _decode(a, at, messages, total, x)
    return bound


@jit
def _gather(a: Arrays, at: Ints, messages: Floats, total: Floats, beliefs: Floats, i: int) -> None:
    base = a.offsets[i]
    width = a.offsets[i + 1] - base
    for s in range(width):
        beliefs[base + s] = a.costs[base + s]
    add_prices(a, i, total, beliefs)
    for link in range(a.start[i], a.start[i + 1]):
        for s in range(width):
            beliefs[base + s] += messages[at[link] + s]


@jit
def _send_on(a: Arrays, at: Ints, messages: Floats, beliefs: Floats, i: int, later: bool) -> float:
    """Messages from i to its later (or earlier) neighbours; returns the sum of the minima taken out of them."""
    base = a.offsets[i]
    width = a.offsets[i + 1] - base
    after = 0
    for link in range(a.start[i], a.start[i + 1]):
        if a.near[link] > i:
            after += 1
    gamma = 1.0 / max(after, a.start[i + 1] - a.start[i] - after, 1)
    out = 0.0
    rest = np.empty(width)
    for link in range(a.start[i], a.start[i + 1]):
        j = a.near[link]
        if (j > i) != later:
            continue
        for s in range(width):
            rest[s] = gamma * beliefs[base + s] - messages[at[link] + s]
        there = a.back[link]
        mat = a.mat[there]
        floor = np.inf
        for t in range(a.offsets[j + 1] - a.offsets[j]):
            row = mat + t * width
            low = np.inf
            for s in range(width):
                low = min(low, rest[s] + a.mats[row + s])
            messages[at[there] + t] = low
            floor = min(floor, low)
        for t in range(a.offsets[j + 1] - a.offsets[j]):
            messages[at[there] + t] -= floor
        out += floor
    return out


@jit
def _decode(a: Arrays, at: Ints, messages: Floats, total: Floats, x: Ints) -> None:
    """Options chosen one node after another: true edges to those chosen, messages from those to come."""
    local = np.zeros(len(a.costs))
    for i in range(len(x)):
        base = a.offsets[i]
        width = a.offsets[i + 1] - base
        for s in range(width):
            local[base + s] = a.costs[base + s]
        add_prices(a, i, total, local)
        for link in range(a.start[i], a.start[i + 1]):
            j = a.near[link]
            if j < i:
                row = a.mat[a.back[link]] + x[j] * width
                for s in range(width):
                    local[base + s] += a.mats[row + s]
            else:
                for s in range(width):
                    local[base + s] += messages[at[link] + s]
        low = np.inf
        for s in range(width):
            if local[base + s] < low:
                low = local[base + s]
                x[i] = s
