"""One way to keep for every instance of a chain, for the least time within the true peak.

With R_i the resident bytes of instances 0..i, the moments of a step are

    forward of i:   static + R_i + forward transient of i
    backward of i:  static + R_i + backward transient of i + gradients of the parameters of instances after i

and no more than the budget may be in use at any of them. All limits are on prefixes, so a label (R, seconds) that
another one beats in both is done with: `solve_instances` walks the chain with all others, and drops those that
cannot lead to less than what is known already. The bound for that is Lagrange's (`_Bounds`): for any price l per
byte and the limit at any later instance k,

    seconds of the rest >= sum up to k of min (seconds + l * resident) - l * (the most R_k may be) + l * R + ...

Exact: nothing is rounded. Instances that are alike share their options, and may still choose differently.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from meshwright.planner.effort import RESOLUTION, RETRIES


class Option(Protocol):
    """One way to run an instance; `Kept` is one."""

    @property
    def resident_bytes(self) -> int: ...
    @property
    def seconds(self) -> float: ...
    @property
    def forward_transient_bytes(self) -> int: ...
    @property
    def backward_transient_bytes(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Instance:
    """gradient_bytes: of the parameters whose gradients this backward makes; they stay until the step."""

    options: Sequence[Option]
    gradient_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Chosen:
    """The option of each instance. bound_s: no choice within the budget is faster."""

    options: tuple[int, ...]
    seconds: float
    peak_bytes: int
    bound_s: float


ROUNDING = 1e-9
"""By which part a promise may be above what is known: bounds take away bytes at a price, which may be many times the
seconds that are left."""


class _Rows:
    """Numbers of one instance's options, and the most its prefix may hold for each of them."""

    def __init__(self, instance: Instance, budget: int, later_gradients: int) -> None:
        options = instance.options
        self.resident = np.array([option.resident_bytes for option in options], dtype=np.int64)
        self.seconds = np.array([option.seconds for option in options], dtype=np.float64)
        forward = np.array([option.forward_transient_bytes for option in options], dtype=np.int64)
        backward = np.array([option.backward_transient_bytes for option in options], dtype=np.int64)
        self.limit = budget - np.maximum(forward, backward + later_gradients)


def _rows(instances: Sequence[Instance], budget: int) -> list[_Rows]:
    found: list[_Rows] = []
    known: dict[tuple[int, int], _Rows] = {}
    later = 0
    for instance in reversed(instances):
        key = (id(instance.options), later)
        if key not in known:
            known[key] = _Rows(instance, budget, later)
        found.append(known[key])
        later += instance.gradient_bytes
    return found[::-1]


def solve_instances(instances: Sequence[Instance], budget_bytes: int, static_bytes: int = 0) -> Chosen | None:
    """The fastest choice whose peak is within the budget; None where there is none."""
    if not instances:
        return Chosen((), 0.0, static_bytes, 0.0)
    rows = _rows(instances, budget_bytes - static_bytes)
    start = _greedy(rows)
    if start is None:
        return None
    prices = turning_prices((row.resident, row.seconds) for row in {id(row): row for row in rows}.values())
    bounds = _Bounds(rows, prices)
    known = min(_seconds(rows, found) for found in (start, *_rounded(rows, prices)))
    _, quick = _walk(rows, bounds, known, RESOLUTION)
    known = min(known, quick.min(initial=known))
    history, seconds = _walk(rows, bounds, known, None)
    bound_s = float(bounds.rest(0, np.zeros(1, dtype=np.int64))[0])
    best = int(np.argmin(seconds))
    found_s, options, place = float(seconds[best]), list[int](), best
    for parents, picks in reversed(history):
        options.append(int(picks[place]))
        place = int(parents[place])
    options.reverse()
    return Chosen(tuple(options), found_s, peak_of(instances, options, static_bytes), min(bound_s, found_s))


_History = list[tuple[NDArray[np.int64], NDArray[np.int64]]]


def _walk(
    rows: Sequence[_Rows], bounds: _Bounds, known: float, width: int | None
) -> tuple[_History, NDArray[np.float64]]:
    """(per instance, each label's parent and option; seconds of the last labels). At most `width` labels, if given:
    those that promise most."""
    resident, seconds = np.zeros(1, dtype=np.int64), np.zeros(1)
    history: _History = []
    for index, row in enumerate(rows):
        held = (resident[:, None] + row.resident[None, :]).ravel()
        total = (seconds[:, None] + row.seconds[None, :]).ravel()
        fits = held <= np.broadcast_to(row.limit, (len(resident), len(row.limit))).ravel()
        places = np.flatnonzero(fits)
        promise = total[places] + bounds.rest(index + 1, held[places])
        promising = promise <= known * (1 + ROUNDING)
        places, promise = places[promising], promise[promising]
        order = _undominated(held[places], total[places])
        if width is not None and len(order) > width:
            order = order[np.argpartition(promise[order], width)[:width]]
        places = places[order]
        history.append((places // len(row.limit), places % len(row.limit)))
        resident, seconds = held[places], total[places]
    return history, seconds


def peak_of(instances: Sequence[Instance], options: Sequence[int], static_bytes: int = 0) -> int:
    """The most bytes in use at any moment."""
    later = sum(instance.gradient_bytes for instance in instances)
    resident, most = 0, static_bytes
    for instance, index in zip(instances, options, strict=True):
        option = instance.options[index]
        later -= instance.gradient_bytes
        resident += option.resident_bytes
        working = max(option.forward_transient_bytes, option.backward_transient_bytes + later)
        most = max(most, static_bytes + resident + working)
    return most


def least_peak_bytes(instances: Sequence[Instance], static_bytes: int = 0) -> int:
    """The smallest budget for which there is a choice."""
    low, high = static_bytes, peak_of(instances, [0] * len(instances), static_bytes)
    while low < high:
        middle = (low + high) // 2
        if _greedy(_rows(instances, middle - static_bytes)) is None:
            low = middle + 1
        else:
            high = middle
    return low


def _greedy(rows: Sequence[_Rows]) -> list[int] | None:
    """The choice that holds least at every prefix: where it does not fit, nothing does."""
    held, found = 0, list[int]()
    for row in rows:
        fits = np.flatnonzero(held + row.resident <= row.limit)
        if not len(fits):
            return None
        pick = int(fits[np.argmin(row.resident[fits])])
        held += int(row.resident[pick])
        found.append(pick)
    return found


def turning_prices(options: Iterable[tuple[NDArray[np.int64], NDArray[np.float64]]]) -> NDArray[np.float64]:
    """Zero and every price per byte at which another option of an instance becomes the cheapest: the slopes of the
    lower hull of its bytes and seconds. options: of each instance."""
    found = {0.0}
    for held, seconds in options:
        at = int(np.lexsort((held, seconds))[0])
        while (less := np.flatnonzero(held < held[at])).size:
            slopes = (seconds[less] - seconds[at]) / (held[at] - held[less])
            price = float(slopes.min())
            near = less[slopes == price]
            at = int(near[held[near].argmin()])
            found.add(price)
    return np.array(sorted(found))


class _Bounds:
    """Lower bounds on the seconds of a suffix, given what its prefix holds: the best few (limit, price) pairs.

    For the limit at instance k and a price l: the instances before k at seconds + l * resident, k itself with what its
    own transient leaves of the budget, those after it at their fastest.
    """

    def __init__(self, rows: Sequence[_Rows], prices: NDArray[np.float64]) -> None:
        n = len(rows)
        self.before = np.zeros((n + 1, len(prices)))
        self.fastest = np.zeros(n + 1)
        at = np.zeros((n, len(prices)))
        for i, row in enumerate(rows):
            priced = row.seconds[:, None] + prices[None, :] * row.resident[:, None]
            self.before[i + 1] = self.before[i] + priced.min(axis=0)
            at[i] = (priced - prices[None, :] * row.limit[:, None]).min(axis=0)
        for i in reversed(range(n)):
            self.fastest[i] = self.fastest[i + 1] + rows[i].seconds.min()
        whole = self.before[:-1] + at + self.fastest[1:, None]
        best = np.argsort(-whole, axis=None)[:RETRIES]
        last = (n - 1) * len(prices) + np.argsort(-whole[-1])[: RETRIES // 2]
        self.limits, picks = np.divmod(np.unique(np.concatenate([best, last])), len(prices))
        self.whole, self.picks, self.prices = whole[self.limits, picks], picks, prices[picks]

    def rest(self, start: int, held: NDArray[np.int64]) -> NDArray[np.float64]:
        found = np.full(len(held), self.fastest[start])
        for limit, pick, whole, price in zip(self.limits, self.picks, self.whole, self.prices, strict=True):
            if limit >= start:
                found = np.maximum(found, whole - self.before[start, pick] + price * held)
        return found


def _rounded(rows: Sequence[_Rows], prices: NDArray[np.float64]) -> list[list[int]]:
    """Choices that fit, between two neighbouring prices: those of the higher price first, then those of the lower."""
    chains = [[int(np.argmin(row.seconds + price * row.resident)) for row in rows] for price in prices]
    for cheap, dear in zip([chains[0], *chains], chains, strict=False):
        for count in range(len(rows) + 1) if cheap != dear else (0,):
            found = [*dear[:count], *cheap[count:]]
            if _fits(rows, found):
                return [found]
    return []


def _fits(rows: Sequence[_Rows], options: Sequence[int]) -> bool:
    held = 0
    for row, index in zip(rows, options, strict=True):
        held += int(row.resident[index])
        if held > row.limit[index]:
            return False
    return True


def _seconds(rows: Sequence[_Rows], options: Sequence[int]) -> float:
    total = 0.0
    for row, index in zip(rows, options, strict=True):
        total += float(row.seconds[index])
    return total


def _undominated(held: NDArray[np.int64], seconds: NDArray[np.float64]) -> NDArray[np.int64]:
    """Indices of labels that no other beats in both, by rising bytes."""
    order = np.lexsort((seconds, held))
    falling = seconds[order]
    best = np.concatenate([[np.inf], np.minimum.accumulate(falling)[:-1]])
    return order[falling < best]
