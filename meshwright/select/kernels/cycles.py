"""Tightens the relaxation behind the bounds of `trws` by cycles (Sontag et al. 2008, Komodakis and Paragios 2008).

Message passing reaches at best the bound of the linear relaxation over edges, which can be far below the optimum
where the graph has many cycles. Each cycle C therefore gets a cost function of its own. Costs move between it and its
edges, so that no total changes:

    E_e := E_e + L_Ce,      phi_C := - sum over the edges e of C of L_Ce.

A visit adds phi_C and the edges' costs to one function b, takes its min-marginals m_e over each edge, and leaves
m_e / |C| on every edge. The cycle keeps b - sum_e m_e / |C|, which is never negative. So phi_C >= 0 at all times, and
a bound for the edges' costs alone is a bound for the problem. As b is a sum of one table per edge, its min-marginals
are min-plus products of matrices.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from meshwright.select.kernels.arrays import Arrays
from meshwright.select.kernels.jit import jit
from meshwright.select.kernels.pairs import fill_low
from meshwright.select.problem import Floats, Ints


class Cycles(NamedTuple):
    """Cycle c has the places start[c] <= t < start[c + 1], a node each; link[t] leads from it to the next.

    The two edges at place t tell width[t] classes of its options apart. Class x of these is the class
    ahead[first[t] + x] of link[t], and the class behind[first[t] + x] of the link to the place before.
    moved[table[t] + p * kinds + q] is L_Ce for the classes p and q of link[t].
    """

    start: Ints
    link: Ints
    first: Ints
    ahead: Ints
    behind: Ints
    table: Ints
    moved: Floats
    work: Floats  # elementary steps of a visit


@jit
def push(a: Arrays, at: Ints, messages: Floats, beliefs: Floats) -> None:
    """Moves node costs to the edges, in the shares for which `trws.both_ways` proves its bound, the rest equally. The
    smallest costs of nodes and edges then add up to that bound.
    """
    low = np.empty(a.kinds.max())
    for i in range(len(a.offsets) - 1):
        own = beliefs[a.offsets[i] : a.offsets[i + 1]]
        before = 0
        for link in range(a.start[i], a.start[i + 1]):
            if a.near[link] < i:
                before += 1
        after = a.start[i + 1] - a.start[i] - before
        gamma = 1.0 / max(before, after, 1)
        rest = (1.0 - before * gamma) / max(after, 1)
        for link in range(a.start[i], a.start[i + 1]):
            fill_low(a, link, own, low)
            share = gamma if a.near[link] < i else rest
            for p in range(a.kinds[link]):
                messages[at[link] + p] -= share * low[p]


@jit
def tighten(a: Arrays, at: Ints, messages: Floats, s: Cycles, begin: int, quota: float) -> tuple[int, float]:
    """Visits cycles from `begin` on until `quota` steps are done; returns the next cycle and the steps done."""
    steps = 0.0
    count = len(s.start) - 1
    c = begin
    while steps < quota and c < begin + count:
        _visit(a, at, messages, s, s.start[c % count], s.start[c % count + 1])
        steps += s.work[c % count]
        c += 1
    return c % count, steps


@jit
def _visit(a: Arrays, at: Ints, messages: Floats, s: Cycles, begin: int, end: int) -> None:
    n = end - begin
    tables = [_gather(a, at, messages, s, begin + t, begin + (t + 1) % n) for t in range(n)]
    forth = [tables[0]]  # forth[t]: paths from place 0 to t + 1
    for t in range(1, n - 1):
        forth.append(min_plus(forth[t - 1], tables[t]))
    back = [tables[n - 1]]  # back[t]: paths from place n - 1 - t on to 0
    for t in range(1, n - 1):
        back.append(min_plus(tables[n - 1 - t], back[t - 1]))
    for t in range(n):
        if t == 0:
            around = back[n - 2]
        elif t == n - 1:
            around = forth[n - 2]
        else:
            around = min_plus(back[n - 2 - t], forth[t - 1])
        _spread(a, at, messages, s, begin + t, begin + (t + 1) % n, tables[t], around, n)


@jit
def _gather(a: Arrays, at: Ints, messages: Floats, s: Cycles, t: int, u: int) -> Floats:
    """The cost of link[t] less the messages and less what was moved to it: its part of the cycle's function b."""
    link, back = s.link[t], a.back[s.link[t]]
    rows, columns = s.ahead[s.first[t] : s.first[t + 1]], s.behind[s.first[u] : s.first[u + 1]]
    kinds = a.kinds[back]
    table = np.empty((len(rows), len(columns)))
    line = np.empty(kinds)
    for x in range(len(rows)):
        row = rows[x] * kinds
        message = messages[at[link] + rows[x]]
        for q in range(kinds):
            line[q] = a.mats[a.mat[link] + row + q] - s.moved[s.table[t] + row + q] - message - messages[at[back] + q]
        for y in range(len(columns)):
            table[x, y] = line[columns[y]]
    return table


@jit
def _spread(
    a: Arrays, at: Ints, messages: Floats, s: Cycles, t: int, u: int, table: Floats, around: Floats, parts: int
) -> None:
    """Leaves a share of the min-marginals, table plus the cheapest way around, on the edge of link[t]."""
    link, back = s.link[t], a.back[s.link[t]]
    rows, columns = s.ahead[s.first[t] : s.first[t + 1]], s.behind[s.first[u] : s.first[u + 1]]
    kinds, others = a.kinds[link], a.kinds[back]
    least = np.full((kinds, others), np.inf)
    for x in range(len(rows)):
        line = least[rows[x]]
        for y in range(len(columns)):
            line[columns[y]] = min(line[columns[y]], table[x, y] + around[y, x])
    for p in range(kinds):
        message = messages[at[link] + p]
        for q in range(others):
            cost = least[p, q] / parts + message + messages[at[back] + q]
            entry = a.mat[link] + p * others + q
            s.moved[s.table[t] + p * others + q] += cost - a.mats[entry]
            a.mats[entry] = cost
            a.mats[a.mat[back] + q * kinds + p] = cost


@jit
def min_plus(a: Floats, b: Floats) -> Floats:
    """out[x, z] = min over y of a[x, y] + b[y, z]. Four y at once, so that `out` is read and written less often."""
    out = np.full((len(a), b.shape[1]), np.inf)
    inner = a.shape[1]
    for x in range(len(a)):
        line = out[x]
        for y in range(0, inner - 3, 4):
            c0, c1, c2, c3 = a[x, y], a[x, y + 1], a[x, y + 2], a[x, y + 3]
            b0, b1, b2, b3 = b[y], b[y + 1], b[y + 2], b[y + 3]
            for z in range(len(line)):
                line[z] = min(line[z], min(min(c0 + b0[z], c1 + b1[z]), min(c2 + b2[z], c3 + b3[z])))
        for y in range(inner - inner % 4, inner):
            cost, row = a[x, y], b[y]
            for z in range(len(line)):
                line[z] = min(line[z], cost + row[z])
    return out
