"""What pairs of options cost, by the classes that an edge sees; and messages over an edge,

m(q) = min over classes p of [ low(p) + E(p, q) ],      low(p) = min over the options s of class p of w(s).
"""

from __future__ import annotations

import numpy as np

from meshwright.select.kernels.arrays import Arrays
from meshwright.select.kernels.jit import jit
from meshwright.select.problem import Floats, Ints


@jit
def pair_cost(a: Arrays, link: int, s: int, t: int) -> float:
    """Of option s of the link's owner with option t of the other."""
    back = a.back[link]
    row = a.classes[a.seen[link] + s] * a.kinds[back]
    return float(a.mats[a.mat[link] + row + a.classes[a.seen[back] + t]])


@jit
def add_pairs(a: Arrays, link: int, t: int, out: Floats) -> None:
    """Adds what each option of the link's owner costs with option t of the other."""
    back = a.back[link]
    kinds = a.kinds[link]
    row = a.mat[back] + a.classes[a.seen[back] + t] * kinds
    spread(a, link, a.mats[row : row + kinds], out)


@jit
def spread(a: Arrays, link: int, by_class: Floats, out: Floats) -> None:
    """Adds to every option of the link's owner what its class has."""
    classes = a.classes[a.seen[link] : a.seen[link] + len(out)]
    for s in range(len(out)):
        out[s] += by_class[classes[s]]


@jit
def fill_low(a: Arrays, link: int, weight: Floats, low: Floats) -> None:
    """low(p) of the link's owner, whose options have these weights."""
    classes: Ints = a.classes[a.seen[link] : a.seen[link] + len(weight)]
    low[: a.kinds[link]] = np.inf
    for s in range(len(weight)):
        p = classes[s]
        low[p] = min(low[p], weight[s])


@jit
def fill_message(a: Arrays, link: int, low: Floats, message: Floats) -> None:
    """m(q), for the classes of the node that the link leads to. Slices, so that many q are looked at at once."""
    kinds = a.kinds[a.back[link]]
    out = message[:kinds]
    out[:] = np.inf
    for p in range(a.kinds[link]):
        row = a.mat[link] + p * kinds
        costs = a.mats[row : row + kinds]
        least = low[p]
        for q in range(kinds):
            out[q] = min(out[q], least + costs[q])
