"""Measure rates and latencies through a Prober, with the spread of repeats: how sure a figure is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Protocol

Pair = tuple[int, int]

_LONG_ENOUGH_S = 0.12  # long against jitter and against what a shaper lets through at once
_AGREE = 1.08
_MOST_ROUNDS = 3
_CORRECTION_IF_LONG, _CORRECTION_IF_SHORT = 1.12, 2.0


@dataclass(frozen=True, slots=True)
class RankInfo:
    """What a rank says of itself: its host's name and its device's own figures."""

    host: str
    device: str
    kind: str
    memory_bytes: int
    memory_bandwidth: float
    launch_s: float
    matmul_flops: tuple[tuple[str, float], ...]


class Prober(Protocol):
    """A live process group, or a simulated one, that can be asked to send."""

    ranks: Sequence[RankInfo]
    largest_bytes: int  # no single message is larger

    def flows(self, pairs: Sequence[Pair], n_bytes: int) -> list[list[float]]:
        """Send `n_bytes` along all pairs at the same time; per pair, seconds until it had arrived, per repeat."""
        ...

    def round_trip(self, pair: Pair) -> list[float]:
        """Seconds for one item there and back, per repeat."""
        ...

    def collective(self, kind: str, ranks: Sequence[int], n_bytes: int) -> list[float]:
        """Seconds of a collective over these ranks (bytes as in `collective_s`), per repeat."""
        ...


@dataclass(frozen=True, slots=True)
class Measured:
    """A figure and the relative spread of its repeats: (largest - smallest) / median."""

    value: float
    spread: float

    def __str__(self) -> str:
        return f"spread {self.spread:.0%}"


def of_repeats(values: Sequence[float]) -> Measured:
    middle = median(values)
    return Measured(middle, (max(values) - min(values)) / middle if middle else 0.0)


def rate(prober: Prober, pair: Pair) -> Measured:
    """Bytes per second of one flow on an otherwise silent network."""
    return rates(prober, [pair])[0]


def rates(prober: Prober, pairs: Sequence[Pair], senders: Sequence[int] | None = None) -> list[Measured]:
    """Bytes per second of flows that run at the same time, by sender label (by pair by default).

    The time for 2n bytes less that for n: what starting costs, and what a full bucket lets through, cancels.
    A sender with several flows is done when the last of them is.
    """
    labels = list(senders) if senders is not None else list(range(len(pairs)))
    n_bytes = 1 << 16
    while True:
        short = prober.flows(pairs, n_bytes)
        fastest_s = min(min(times) for times in short)
        if fastest_s >= _LONG_ENOUGH_S or n_bytes >= prober.largest_bytes:
            break
        n_bytes = min(prober.largest_bytes, n_bytes * max(2, min(16, int(_LONG_ENOUGH_S / max(fastest_s, 1e-6)))))
    short = _until_sure(prober, pairs, n_bytes, short)
    long = _until_sure(prober, pairs, 2 * n_bytes, prober.flows(pairs, 2 * n_bytes))
    return [_slope(label, labels, short, long, n_bytes) for label in sorted(set(labels))]


def _until_sure(prober: Prober, pairs: Sequence[Pair], n_bytes: int, times: list[list[float]]) -> list[list[float]]:
    """More repeats until the two best of each flow agree: on a busy machine the first few may all be late."""
    for _ in range(_MOST_ROUNDS):
        best = [sorted(repeats)[:2] for repeats in times]
        if all(second <= first * _AGREE for first, second in best):
            break
        more = prober.flows(pairs, n_bytes)
        times = [repeats + again for repeats, again in zip(times, more, strict=True)]
    return times


def _slope(label: int, labels: list[int], short: list[list[float]], long: list[list[float]], n_bytes: int) -> Measured:
    """Bytes over the difference of the shortest times: whatever else a machine does only makes one longer.

    The difference of two noisy times is noisier than either, so it may only correct the plain rate somewhat:
    little where a transfer is long against what starting it costs.
    """
    mine = [i for i, other in enumerate(labels) if other == label]
    short_s, long_s = _last_flow_s(short, mine), _last_flow_s(long, mine)
    sent_bytes = n_bytes * len(mine)
    plain = 2 * sent_bytes / min(long_s)
    most = _CORRECTION_IF_LONG if min(long_s) >= _LONG_ENOUGH_S else _CORRECTION_IF_SHORT
    difference_s = max(min(long_s) - min(short_s), sent_bytes / (plain * most))
    return Measured(max(sent_bytes / difference_s, plain / most), (max(long_s) - min(long_s)) / median(long_s))


def _last_flow_s(times: list[list[float]], mine: list[int]) -> list[float]:
    return [max(repeats) for repeats in zip(*(times[i] for i in mine), strict=True)]


def latency(prober: Prober, pair: Pair) -> Measured:
    """Seconds one way for one item."""
    return of_repeats([seconds / 2 for seconds in prober.round_trip(pair)])
