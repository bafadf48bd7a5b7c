"""How many rows come to the experts of the busiest rank, where tokens are routed evenly or with a power-law skew."""

from __future__ import annotations

from math import exp
from typing import NamedTuple

from meshwright.caches import CACHES

MOST_OF_TOKENS = 0.8
FEW = (0.01, 2.0)
"""Between which loads the skewed ones are drawn: one token and this share of all; these where there are fewer rows than
experts (aiconfigurator's collector, 095f58a, whose measured layers have such loads)."""


class ExpertLoad(NamedTuple):
    """Of one rank. rows: that its experts compute. used: experts that get any, whose weights are read."""

    rows: float
    used: float


@CACHES.memoized(maxsize=1 << 14)
def busiest_rank(tokens: float, topk: float, experts: float, ranks: float, skew: float) -> ExpertLoad:
    """experts: of each rank. skew: exponent of the power law that loads of experts follow; 0 if they are equal.

    Loads are the law's quantiles. Equal loads are not its limit at 0, where loads of all sizes are as frequent. The
    busiest rank has the busiest expert; its others are taken to be average.
    """
    rows, total = tokens * topk, round(experts * ranks)
    if not skew:
        return ExpertLoad(rows / ranks, experts * min(1.0, rows / total))
    low, high = (1.0, max(MOST_OF_TOKENS * tokens, 1.01)) if rows > total else FEW
    drawn = [_quantile((place + 0.5) / total, skew, low, high) for place in range(total)]
    each = rows / sum(drawn)
    loads = [min(tokens, each * load) for load in drawn]
    used = [1.0 - exp(-load) for load in loads]
    if ranks == 1:
        return ExpertLoad(sum(loads), sum(used))
    others = (experts - 1) / (total - 1)
    return ExpertLoad(loads[-1] + others * sum(loads[:-1]), used[-1] + others * sum(used[:-1]))


def _quantile(share: float, skew: float, low: float, high: float) -> float:
    if abs(skew - 1.0) < 1e-6:
        return float(low * (high / low) ** share)
    power = 1.0 - skew
    return float(((high**power - low**power) * share + low**power) ** (1.0 / power))
