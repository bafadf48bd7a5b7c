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
from meshwright.select.kernels.pairs import add_pairs, fill_low, fill_message, spread
from meshwright.select.kernels.rows import add_prices
from meshwright.select.problem import Floats, Ints


@jit
def message_at(a: Arrays) -> Ints:
    """Where the message along each link (towards its owner) begins; it has an entry per class of the owner's."""
    at = np.zeros(len(a.near) + 1, dtype=np.int64)
    for link in range(len(a.near)):
        at[link + 1] = at[link] + a.kinds[link]
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
        own = beliefs[a.offsets[i] : a.offsets[i + 1]]
        low = own.min()
        own -= low
        bound += low + _send_on(a, at, messages, beliefs, i, False)
    _decode(a, at, messages, total, x)
    return bound


@jit
def _gather(a: Arrays, at: Ints, messages: Floats, total: Floats, beliefs: Floats, i: int) -> None:
    own = beliefs[a.offsets[i] : a.offsets[i + 1]]
    own[:] = a.costs[a.offsets[i] : a.offsets[i + 1]]
    add_prices(a, i, total, beliefs)
    for link in range(a.start[i], a.start[i + 1]):
        spread(a, link, messages[at[link] : at[link + 1]], own)


@jit
def _send_on(a: Arrays, at: Ints, messages: Floats, beliefs: Floats, i: int, later: bool) -> float:
    """Messages from i to its later (or earlier) neighbours; returns the sum of the minima taken out of them."""
    own = beliefs[a.offsets[i] : a.offsets[i + 1]]
    after = 0
    for link in range(a.start[i], a.start[i + 1]):
        if a.near[link] > i:
            after += 1
    gamma = 1.0 / max(after, a.start[i + 1] - a.start[i] - after, 1)
    out = 0.0
    rest = np.empty(len(own))
    for link in range(a.start[i], a.start[i + 1]):
        j = a.near[link]
        if (j > i) != later:
            continue
        fill_low(a, link, own, rest)
        for p in range(a.kinds[link]):
            rest[p] = gamma * rest[p] - messages[at[link] + p]
        there = a.back[link]
        sent = messages[at[there] : at[there + 1]]
        fill_message(a, link, rest, sent)
        floor = sent.min()
        sent -= floor
        out += floor
    return out


@jit
def _decode(a: Arrays, at: Ints, messages: Floats, total: Floats, x: Ints) -> None:
    """Options chosen one node after another: true edges to those chosen, messages from those to come."""
    local = a.costs.copy()
    for i in range(len(x)):
        own = local[a.offsets[i] : a.offsets[i + 1]]
        add_prices(a, i, total, local)
        for link in range(a.start[i], a.start[i + 1]):
            j = a.near[link]
            if j < i:
                add_pairs(a, link, x[j], own)
            else:
                spread(a, link, messages[at[link] : at[link + 1]], own)
        x[i] = own.argmin()
