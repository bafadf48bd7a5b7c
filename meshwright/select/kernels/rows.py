"""Usage of rows and prices of options.

A price lambda_r >= 0 per byte of row r turns the bytes of an option into cost:  p_i(s) = sum over its items m of
bytes_m(s) * (L[end_m] - L[begin_m]),  L the running sum of lambda. Both ways an item of any length takes two array
accesses.
"""

from __future__ import annotations

from meshwright.select.kernels.arrays import Arrays
from meshwright.select.kernels.jit import jit
from meshwright.select.kernels.pairs import pair_cost
from meshwright.select.problem import Floats, Ints


@jit
def fill_usage(a: Arrays, x: Ints, usage: Floats) -> None:
    """usage[r] for the choice x."""
    usage[:] = 0.0
    rows = len(usage)
    for i in range(len(x)):
        for m in range(a.item[i], a.item[i + 1]):
            size = a.bytes[a.first[m] + x[i]]
            usage[a.begin[m]] += size
            if a.end[m] < rows:
                usage[a.end[m]] -= size
    for r in range(1, rows):
        usage[r] += usage[r - 1]


@jit
def fill_running(price: Floats, total: Floats) -> None:
    """total[r] = sum of price[:r]."""
    total[0] = 0.0
    for r in range(len(price)):
        total[r + 1] = total[r] + price[r]


@jit
def add_prices(a: Arrays, i: int, total: Floats, out: Floats) -> None:
    """Adds the prices of the options of node i to out[offsets[i]:offsets[i + 1]]."""
    base = a.offsets[i]
    width = a.offsets[i + 1] - base
    for m in range(a.item[i], a.item[i + 1]):
        rate = total[a.end[m]] - total[a.begin[m]]
        if rate != 0.0:
            first = a.first[m]
            for s in range(width):
                out[base + s] += rate * a.bytes[first + s]


@jit
def total_cost(a: Arrays, x: Ints) -> float:
    """Node and edge costs of the choice x."""
    cost = 0.0
    for i in range(len(x)):
        cost += a.costs[a.offsets[i] + x[i]]
        for link in range(a.start[i], a.start[i + 1]):
            j = a.near[link]
            if i < j:
                cost += pair_cost(a, link, x[i], x[j])
    return cost
