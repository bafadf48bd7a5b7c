"""Measured kernels of a device: products, attention, mixtures of experts, as ratios to a roofline at scattered sizes.

A roofline is the longer of the arithmetic and the traffic of memory at usual fractions of the nominal rates, and a
start. What was measured is kept as a ratio to it, and read between the measured sizes by kriging (`scatter`): the
ratio changes slowly, and the figures of one size by themselves are not believed fully. The roofline's own microseconds
are a size of products too: the clock falls under load, and short kernels end before it does. So is what whole waves of
tiles take more than the product, where the library deals each processor the same number of tiles (`in_waves`). A device
that was not measured takes the ratios of its nearest relative for the same sizes, at its own rates and with the waves
of its own processors.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from meshwright.caches import CACHES
from meshwright.cluster.expert_loads import busiest_rank
from meshwright.errors import ClusterError

if TYPE_CHECKING:
    from meshwright.cluster.scatter import Scatter

KERNELS = Path(__file__).parent / "kernels"
_PRODUCT_START_S, _ATTENTION_START_S, _MIXTURE_START_S = 2e-6, 6e-6, 15e-6
_MOST_WAITS = 4.0
"""Beyond that other kernels are chosen."""
PARTS = ("products", "attention", "mixture")
Tile = tuple[float, float, float]
"""Rows and columns that one processor makes at a time, and how much longer it takes for its share than with the
best."""
WIDTHS = {"bfloat16": 2.0, "float16": 2.0, "float8": 1.0, "float8_block": 1.0, "float4": 0.5}
"""Bytes of an element of a weight."""


def product_roof_s(peak: float, bandwidth: float, width: float, m: float, n: float, k: float) -> float:
    """[m, k] by [k, n]; what comes out has two bytes, whatever goes in."""
    moved = width * (m * k + n * k) + 2 * m * n
    return _PRODUCT_START_S + max(2 * m * n * k / (0.75 * peak), moved / (0.8 * bandwidth))


def in_waves(m: float, n: float, tiles: Sequence[Tile], processors: int) -> float:
    """How much longer all processors take for whole tiles, as many on each, than for their share of [m, n]; zero where
    the library deals none."""
    found = []
    for rows, columns, slower in tiles:
        waves = ceil(ceil(m / rows) * ceil(n / columns) / processors)
        found.append(slower * waves * processors * rows * columns / (m * n))
    return min(_MOST_WAITS, *found) if found else 0.0


def product_sizes(m: float, n: float, k: float, roof_s: float, waves: float) -> tuple[float, ...]:
    """What the ratio of a product is read at."""
    return (m, n, k, 1e6 * roof_s, *([waves] if waves else []))


def causal_pairs(queries: float, keys: float, window: float) -> float:
    """Pairs of a query and a key that it sees: half of all, or those of a window."""
    seen = window if 0 < window < keys else keys
    return queries * (seen - seen * seen / keys / 2)


def attention_roof_s(
    peak: float, bandwidth: float, width: float, heads: float, queries: float, keys: float, size: float, groups: float,
    window: float,
) -> float:  # fmt: skip
    """Causal, forward; `heads` of all samples, `groups` of them for each pair of key and value, which are also
    stored."""
    pairs = causal_pairs(queries, keys, window)
    moved = 2 * size * (2 * heads * queries + 2 * heads / groups * keys) + width * 2 * size * heads / groups * keys
    return _ATTENTION_START_S + max(4 * heads * pairs * size / (0.6 * peak), moved / (0.7 * bandwidth))


def mixture_roof_s(
    peak: float, bandwidth: float, width: float, tokens: float, hidden: float, ffn: float, topk: float, experts: float,
    ranks: float, skew: float,
) -> float:  # fmt: skip
    """Three products of the rows that come to the busiest rank's experts, and the weights of those that get any."""
    rows, used = busiest_rank(tokens, topk, experts, ranks, skew)
    flops = 6 * rows * hidden * ffn
    moved = width * 3 * used * hidden * ffn + 4 * tokens * hidden + 2 * rows * (2 * ffn + hidden)
    return _MIXTURE_START_S + flops / (0.5 * peak) + moved / (0.6 * bandwidth)


class KernelTable:
    """Ratios to the rooflines, by dtype; tiles: those that products are made of, where whole waves of them tell."""

    __slots__ = ("attention", "mixture", "name", "products", "tiles")

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.name = str(data["name"])
        self.products = _scatters(data.get("products", {}))
        self.tiles: dict[str, list[Tile]] = {
            dtype: [(rows, columns, slower) for rows, columns, slower in one.get("tiles", [])]
            for dtype, one in data.get("products", {}).items()
        }
        self.attention = _scatters(data.get("attention", {}))
        self.mixture = _scatters(data.get("mixture", {}))

    def tiles_of(self, dtype: str) -> Sequence[Tile]:
        return self.tiles.get(_measured_as(dtype)) or self.tiles.get(dtype.removesuffix("_block")) or ()


def _measured_as(dtype: str) -> str:
    return "bfloat16" if dtype == "float16" else dtype


def _scatters(by_dtype: Mapping[str, Any]) -> dict[str, Scatter]:
    from meshwright.cluster.scatter import Scatter  # which imports numpy

    return {
        dtype: Scatter(one["points"], {"forward": one["ratios"]}, one["weights"], noise=one["noise"])
        for dtype, one in by_dtype.items()
    }


@CACHES.memoized(maxsize=None)
def measured_kernels() -> tuple[str, ...]:
    """Names of the shipped tables."""
    return tuple(sorted(path.stem for path in KERNELS.glob("*.json")))


@CACHES.memoized(maxsize=None)
def kernel_table(name: str) -> KernelTable:
    path = KERNELS / f"{name}.json"
    if not path.exists():
        raise ClusterError(f"measured kernels {name!r}", f"one of {', '.join(measured_kernels())}")
    return KernelTable(json.loads(path.read_text(encoding="utf-8")))


class Rates(NamedTuple):
    """Of a device: peaks by dtype, in FLOP/s, and bytes per second of its memory."""

    peaks: Mapping[str, float]
    bandwidth: float

    def peak(self, dtype: str) -> float:
        return self.peaks.get(dtype.removesuffix("_block")) or self.peaks.get("bfloat16") or self.peaks["float32"]


class MeasuredKernels:
    """A table's ratios at one device's own rates: seconds forward, or None where the table has nothing of the kind.

    there: peaks and bandwidth of the table's device. reach: fractions of peak on this device over those on the table's.
    processors: multiprocessors of this device.
    parts: those of the table that are used; types narrower than bfloat16 always are, since meshwright was calibrated in
    none.
    """

    __slots__ = ("_own", "_parts", "_processors", "_reach", "_table", "_there")

    def __init__(
        self,
        table: KernelTable,
        own: Rates,
        there: Rates,
        reach: float,
        parts: frozenset[str],
        processors: int = 1,
    ) -> None:
        self._table, self._own, self._there, self._reach, self._parts = table, own, there, reach, parts
        self._processors = processors

    @property
    def is_secondary(self) -> bool:
        """Whether the device has tables of its own, and these are for narrow types alone."""
        return not self._parts

    def _of(self, part: str, dtype: str) -> Scatter | None:
        wide = dtype in ("bfloat16", "float16")
        if wide and (part not in self._parts or dtype not in self._own.peaks):  # a V100 has no units for bfloat16
            return None
        by_dtype: dict[str, Scatter] = getattr(self._table, part)
        return by_dtype.get(_measured_as(dtype)) or by_dtype.get(dtype.removesuffix("_block"))

    def _at(self, dtype: str) -> tuple[float, float]:
        """Peak and bandwidth of this device."""
        return self._reach * self._own.peak(dtype), self._own.bandwidth

    def product_s(self, dtype: str, m: float, n: float, k: float) -> float | None:
        """A product [m, k] by [n, k] transposed; narrower types than bfloat16 with the quantisation of x. Beyond the
        measured sizes it is never faster than the peak."""
        ratio = self._of("products", dtype)
        if ratio is None:
            return None
        width = WIDTHS[dtype]
        there_s = product_roof_s(self._there.peak(dtype), self._there.bandwidth, width, m, n, k)
        waves = in_waves(m, n, self._table.tiles_of(dtype), self._processors)
        slower = ratio("forward", *product_sizes(m, n, k, there_s, waves))
        found_s = product_roof_s(*self._at(dtype), width, m, n, k) * slower
        return max(found_s, 2 * m * n * k / self._own.peak(dtype))

    def attention_s(
        self, dtype: str, heads: int, queries: int, keys: int, size: int, groups: float, window: int
    ) -> float | None:
        """Causal attention, forward. dtype: of keys and values as they are stored."""
        ratio = self._of("attention", dtype)
        if ratio is None:
            return None
        half = "float16" if dtype == "float16" else "bfloat16"
        sizes = (WIDTHS[dtype], heads, queries, keys, size, groups, window)
        narrowed = keys / window if 0 < window < keys else 1.0
        return attention_roof_s(*self._at(half), *sizes) * ratio("forward", heads, keys, size, groups, narrowed)

    def mixture_s(
        self, dtype: str, tokens: float, hidden: int, ffn: int, topk: int, experts: int, ranks: int, skew: float
    ) -> float | None:
        """Routed experts, forward, on one of `ranks` ranks that hold `experts` each and see all tokens."""
        ratio = self._of("mixture", dtype)
        if ratio is None:
            return None
        sizes = (tokens, hidden, ffn, topk, experts, ranks)
        roof_s = mixture_roof_s(*self._at(dtype), WIDTHS[dtype], *sizes, skew)
        return roof_s * ratio("forward", *sizes, 1.0 + skew)
