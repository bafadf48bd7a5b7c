"""DeviceProfile: what calibration measured of a device, and how figures between the measured ones are read.

Kernels bound by memory have curves: seconds over bytes. Products and rows have grids: the fraction of the roofline
that they reach, over a few sizes. Attention and convolution have scatters: how much longer they take than their
roofline, at many. The host's cost of asking for an op is kept apart: the two overlap. Where kernels of this very
device or its nearest relative were measured forward (`kernel_table`), they say what products, attention and experts
take; what was not measured there (other layouts, backward, masks) keeps its ratio to them on the device of the tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, log
from typing import TYPE_CHECKING

from meshwright.cluster.kernel_table import MeasuredKernels, causal_pairs
from meshwright.cluster.profile_tables import Grid, Tables
from meshwright.cluster.rooflines import (
    attention_base_s,
    convolution_base_s,
    matmul_base_s,
    product_base_s,
    row_base_s,
)

if TYPE_CHECKING:
    from meshwright.cluster.scatter import Scatter

Place = tuple[int, ...]

VOCABULARY, LOOKED_UP = 1024, 1024
"""Rows of the table in which calibration looks rows up, and elements of each."""


def alignment(pixels: int, itemsize: int) -> int:
    """How the rows of an image lie: 1 where each begins at 16 bytes, 2 at 4, 4 at less."""
    n_bytes = pixels * itemsize
    return 1 if n_bytes % 16 == 0 else 2 if n_bytes % 4 == 0 else 4


def window_place(itemsize: int, images: int, image: int, channels: int, out: int, window: int, spread: int) -> Place:
    """Where a convolution lies among others: pixels, those of each image, channels in and out, elements of a window,
    how many pixels of the input there are for each of the output; and how channels fill 16, 64 and 128 bytes."""
    return (images * image, image, channels, out, window, spread, *(_filling(n * itemsize) for n in (channels, out)))


def _filling(n_bytes: int) -> int:
    """1 where whole, twice as much for each of the sizes that is not filled."""
    return 1 << sum(n_bytes % size != 0 for size in (16, 64, 128))


_CONVOLUTIONS = ("convolution", "convolution_1x1", "convolution_bias", "convolution_turned", "depthwise")
IMAGES = frozenset({*_CONVOLUTIONS, "batch_norm", "group_norm"})
"""Ops whose host seconds in the midst of a step were seen in a model of images; those of others in a transformer."""

WEIGHTS = {
    "attention": (0.7, 1.0, 3.0),
    "convolution.plain": (1.0, 1.0, 1.0, 1.0, 6.0),
    "convolution.window": (1.0, 0.75, 1.2, 1.2, 3.0, 1.0, 1.45, 1.45),
}
"""How much each size tells samples apart. Attention: heads, keys, width. Convolution with a window of one: images,
pixels of each, channels in and out, how rows lie; with larger ones `window_place`."""


LAYER_SHARE = 0.7
"""Of a transformer layer's time that goes to products."""


class DeviceProfile:
    """Prices of kernels on one device: measured tables, at this device's own rates.

    Tables of another device serve as well: what was measured there as a fraction of the nominal is taken to be
    reached here too, and the host's part is scaled by what one launch costs.
    """

    __slots__ = (
        *(
            "_best_attention",
            "_faster",
            "_measured",
            "_memory",
            "_memory_reach",
            "_peaks",
            "_ratios",
            "_reach",
            "_sustained",
            "_tiled",
        ),
        *("bandwidth", "host_scale", "memo", "tables"),
    )

    def __init__(
        self, tables: Tables, peaks: Mapping[str, float], bandwidth: float, launch_s: float, memory: float,
        reach: float, measured: MeasuredKernels | None = None, sustained: float = 0.0, attention: float = 0.0,
    ) -> None:  # fmt: skip
        """memory: achieved bandwidth over that of the tables' device; reach: likewise for fractions of peak. sustained:
        what products keep of their speed in long steps, by the tables if 0. attention: the fraction of peak that causal
        attention of many long heads reaches forward, and no other attention passes; by the tables if 0."""
        self.tables, self.bandwidth, self._measured = tables, bandwidth, measured
        self._peaks, self._memory, self._reach, self._sustained = peaks, memory, reach, sustained
        # Fractions of the nominal bandwidth: what a copy reaches of it here, over what it reached there.
        self._memory_reach = memory * tables.memory_bandwidth / bandwidth
        self.host_scale = launch_s / tables.launch_s if tables.launch_s else 0.0
        self._ratios: dict[tuple[str, str], Scatter] = {}
        self._tiled: dict[tuple[str, str], Grid] = {}
        self._faster, self._best_attention = 1.0, inf
        if attention:
            sizes = ("bfloat16" if "bfloat16" in peaks else "float16", 2, *_MANY_HEADS)
            flops = 2.0 * _MANY_HEADS[0] * _MANY_HEADS[1] ** 2 * _MANY_HEADS[3]
            best = attention * self._peak(sizes[0])
            self._faster, self._best_attention = best * self.attention_s("causal", "forward", *sizes) / flops, best
        self.memo: dict[object, object] = {}
        """For those who price: what was worked out already."""

    @property
    def has_own_tables(self) -> bool:
        """Whether meshwright was calibrated on this very device: what it runs is then better known than what others
        run."""
        return self._measured is None or self._measured.is_secondary

    def sustained(self, dtype: str) -> float:
        """What products keep of their speed in long steps, in layers of which no more is known; 1 where nothing is."""
        return 1.0 / self._under_load(_table_dtype(dtype), LAYER_SHARE)[0]

    def kernel_s(self, name: str, dtype: str, work: float) -> float:
        """Seconds of a kernel bound by memory."""
        if work <= 0:
            return 0.0
        curves = self.tables.kernels[name]
        curve = curves.get(dtype) or curves.get(_NEAREST.get(dtype, "float32")) or next(iter(curves.values()))
        return curve(work) / self._memory

    def rows_s(self, kernel: str, side: str, dtype: str, itemsize: int, units: float, width: float) -> float:
        """A kernel that works through rows (groups, channels, columns), `width` elements each, side by side."""
        grid = self._grid(f"{kernel}.{side}", dtype)
        least = grid.axes[1][1][0]
        if width < least:  # short rows are worked through several at a time
            units, width = -(-units * width // least), least
        units, width = grid.at_least(units, width)
        return row_base_s(self.bandwidth, itemsize, units, width) / (grid(units, width) * self._memory_reach)

    def matmul_s(self, layout: str, dtype: str, itemsize: int, m: float, n: float, k: float, batch: int = 1) -> float:
        """A product [m, k] by [k, n]; `batch` of them fill the device as one with more rows does."""
        found_s = self._measured and self._measured.product_s(dtype, m * batch, n, k)
        if not found_s:
            return self._table_matmul_s(layout, dtype, itemsize, m, n, k, batch)
        if layout == "nt" and batch == 1 and not (int(n) | int(k)) & 7:
            return found_s
        near_s = self._table_matmul_s("nt", dtype, itemsize, m * batch, n, k, 1, aligned=True)
        ratio = self._table_matmul_s(layout, dtype, itemsize, m, n, k, batch) / near_s
        return found_s * (max(1.0, ratio) if batch > 1 else min(_MOST_APART, max(1 / _MOST_APART, ratio)))

    def _table_matmul_s(
        self, layout: str, dtype: str, itemsize: int, m: float, n: float, k: float, batch: int, aligned: bool = False
    ) -> float:
        grid, units = self._products(layout, dtype, itemsize), self.tables.units
        rows, n_least, k_least = grid.at_least(m * batch, n, k)
        if units > 1:
            base_s = product_base_s(self._peak(dtype), self.bandwidth, itemsize, units, rows, n_least, k_least)
        else:
            base_s = matmul_base_s(self._peak(dtype), self.bandwidth, itemsize, rows, n_least, k_least)
        if batch > 1:
            base_s = max(base_s, batch * matmul_base_s(self._peak(dtype), self.bandwidth, itemsize, m, n, k))
        base_s /= grid(rows, n_least, k_least) * self._reach
        m, n, k = int(m), int(n), int(k)
        if (m | n | k) & 7 and not aligned:
            slower = self.tables.misaligned.get(_table_dtype(dtype), {}).get(layout)
            if slower:
                base_s *= max(slower[i][size & 1] for i, size in enumerate((m, n, k)) if size & 7)
        return base_s

    def _products(self, layout: str, dtype: str, itemsize: int) -> Grid:
        """Fractions of what the tiles that serve a product best would reach: these change slowly between sizes."""
        found = self._tiled.get((layout, dtype))
        if found is None:
            found = self._grid(f"matmul.{layout}", dtype)
            if self.tables.units > 1:
                peak, bandwidth = _peak_of(self.tables.peaks, dtype), self.tables.memory_bandwidth
                ratios = (
                    product_base_s(peak, bandwidth, itemsize, self.tables.units, *point)
                    / matmul_base_s(peak, bandwidth, itemsize, *point)
                    for point in found.points()
                )
                each = zip(found.fractions, ratios, strict=True)
                found = Grid(found.axes, [fraction * ratio for fraction, ratio in each])
            self._tiled[layout, dtype] = found
        return found

    def attention_s(
        self, variant: str, side: str, dtype: str, itemsize: int, heads: int, queries: int, keys: int, width: int,
        groups: int = 1, window: int = 0,
    ) -> float:  # fmt: skip
        """`heads`: of all samples, `groups` of them share a key and a value; window: how many keys a query sees."""
        found_s = self._measured and self._measured.attention_s(dtype, heads, queries, keys, width, groups, window)
        if found_s:
            least_s = 4 * heads * causal_pairs(queries, keys, window) * width / self._best_attention
            found_s = max(found_s / self._faster, least_s)
        if found_s and side == "forward" and variant in ("causal", "grouped"):
            return found_s
        sizes = (dtype, itemsize, heads, queries, keys, width)
        table_s = self._table_attention_s(variant, side, *sizes)
        if not found_s:
            return table_s / self._faster
        return found_s * table_s / self._table_attention_s("causal", "forward", *sizes)

    def mixture_s(
        self,
        dtype: str,
        tokens: float,
        hidden: int,
        ffn: int,
        topk: int,
        experts: int,
        ranks: int = 1,
        skew: float = 0.0,
    ) -> float | None:
        """Forward of a layer of routed experts on one rank, where such layers were measured: `experts` of this rank,
        each `ffn` wide, for `tokens` of which each goes to `topk` of the experts of all `ranks`."""
        if self._measured is None:
            return None
        return self._measured.mixture_s(dtype, tokens, hidden, ffn, topk, experts, ranks, skew)

    def _table_attention_s(
        self, variant: str, side: str, dtype: str, itemsize: int, heads: int, queries: int, keys: int, width: int
    ) -> float:
        """Plain and causal attention were measured at more sizes; other variants are taken to
        differ from them by a factor that changes slowly."""
        causal = variant in ("causal", "grouped")
        base_s = attention_base_s(
            self._peak(dtype), self.bandwidth, itemsize, self.tables.units, heads, queries, keys, width, causal, side
        )
        main = self._scatter("attention.causal" if causal else "attention.plain", dtype)
        ratio = main(side, heads, keys, width)
        if variant not in ("causal", "plain"):
            ratio *= self._against(f"attention.{variant}", main, dtype)(side, heads, keys, width)
        return base_s * ratio / self._reach

    def _against(self, name: str, main: Scatter, dtype: str) -> Scatter:
        key = (name, _table_dtype(dtype))
        found = self._ratios.get(key)
        if found is None:
            found = self._ratios[key] = self._scatter(name, dtype).against(main)
        return found

    def convolution_s(self, side: str, dtype: str, itemsize: int, sizes: tuple[int, ...]) -> float:
        """sizes: as `convolution_base_s` has them."""
        images, image, channels, out, window, wide, _ = sizes
        peak = self._peaks.get("tf32", self._peak(dtype)) if dtype == "float32" else self._peak(dtype)
        base_s = convolution_base_s(peak, self.bandwidth, itemsize, self.tables.units, sizes, side)
        if window == 1 and wide == image:
            ratio = self._scatter("convolution.plain", dtype)(
                side, images, image, channels, out, alignment(image, itemsize)
            )
        else:
            place = window_place(itemsize, images, image, channels, out, window, -(-wide // image))
            ratio = self._scatter("convolution.window", dtype)(side, *place)
        return base_s * ratio / self._reach

    def channels_last_s(self, side: str, dtype: str, itemsize: int, sizes: tuple[int, ...]) -> float:
        """The same of images that lie channels last: large ones reach more of the device, small ones no more."""
        rows_s = self.convolution_s(side, dtype, itemsize, sizes)
        ratios = self.tables.channels_last.get(_table_dtype(dtype))
        if not ratios:
            return rows_s
        peak = self._peaks.get("tf32", self._peak(dtype)) if dtype == "float32" else self._peak(dtype)
        base_s = convolution_base_s(peak, self.bandwidth, itemsize, self.tables.units, sizes, side)
        ratio = ratios["plain" if sizes[4] == 1 and sizes[5] == sizes[1] else "window"]
        return max(rows_s / 2, min(rows_s, base_s * ratio / self._reach))

    def grouped(self, dtype: str, rows: int) -> list[float]:
        """How much longer rows of several groups take: forward, input's and weights' gradients."""
        table = self.tables.grouped.get(_table_dtype(dtype))
        if not table:
            return [1.0, 1.0, 1.0]
        (low, *few), (high, *many) = table[0], table[-1]
        share = min(1.0, max(0.0, log(max(rows, 1) / low) / log(high / low)))
        return [a ** (1 - share) * b**share for a, b in zip(few, many, strict=True)]

    @property
    def knows_load(self) -> bool:
        """Whether clocks under load were measured."""
        return bool(self._sustained or self.tables.steady)

    def steady(self, dtype: str, rate: float) -> tuple[float, float]:
        """How much longer products take than alone, and what moves memory, in a step of so many FLOP/s: of those that
        large ones reach alone, it is the share of its time that they would need."""
        name = _table_dtype(dtype)
        reached = self.tables.reached[name] * self._peak(dtype) / _peak_of(self.tables.peaks, dtype) * self._reach
        return self._under_load(name, rate / reached)

    def _under_load(self, name: str, share: float) -> tuple[float, float]:
        if self._sustained:
            return 1.0 / self._sustained, 1.0
        table = self.tables.steady.get(name)
        if not table:
            return 1.0, 1.0
        shares, *columns = zip(*table, strict=True)
        import numpy as np  # only where a profile is used

        products, moves = (float(np.interp(share, shares, column)) for column in columns)
        return products, moves

    def host(self, name: str, dtype: str = "float32", pair: bool = False) -> tuple[float, float]:
        """Host seconds of asking for an op, forward and backward, in the midst of a step.

        `pair`: as segment pairs ask, by plain kernels and without autograd; as eager PyTorch does otherwise.
        """
        ops = (pair and self.tables.pairs.get("float32")) or self.tables.host.get(_table_dtype(dtype))
        if not ops:
            return 0.0, 0.0
        forward_s, backward_s = ops.get(name) or ops.get(_LIKE.get(name, ""), (0.0, 0.0))
        forward, backward = (1.0, 1.0) if name == "start" else ops["eager"][2:] if name in IMAGES else ops["eager"][:2]
        return forward_s * forward * self.host_scale, backward_s * backward * self.host_scale

    def optimizer(self, name: str, dtype: str, tensors: int, n_bytes: float) -> tuple[float, float]:
        """(host, device) seconds of one step over so many tensors of so many bytes together."""
        cost = self.tables.optimizers[name]
        curve = cost.curves.get(_table_dtype(dtype)) or next(iter(cost.curves.values()))
        host_s = (cost.fixed_s + cost.tensor_s * tensors + cost.byte_s * n_bytes) * self.host_scale
        return host_s, (curve(n_bytes) + cost.tensor_device_s * tensors) / self._memory

    def update_s(self, name: str, dtype: str, n_bytes: float) -> tuple[float, float]:
        """(host, device) seconds that one tensor adds to a trainer's step, its gradient's handing over included."""
        cost = self.tables.optimizers.get(name) or self.tables.optimizers["adamw.fused"]
        last, last_s = (cost.curves.get(_table_dtype(dtype)) or next(iter(cost.curves.values()))).points[-1]
        if not self.tables.host:  # asking and doing are one
            return 0.0, (last_s * n_bytes / last + cost.tensor_device_s) / self._memory + cost.gradient_s
        host_s = (cost.tensor_s + cost.gradient_s) * self.host_scale
        return host_s, (last_s * n_bytes / last + cost.tensor_device_s) / self._memory

    def _peak(self, dtype: str) -> float:
        return _peak_of(self._peaks, dtype)

    def _scatter(self, name: str, dtype: str) -> Scatter:
        found = self.tables.scatters[name]
        return found.get(_table_dtype(dtype)) or next(iter(found.values()))

    def _grid(self, name: str, dtype: str) -> Grid:
        grids = self.tables.grids[name]
        return grids.get(dtype) or grids.get(_table_dtype(dtype)) or next(iter(grids.values()))


_LIKE = {
    **dict.fromkeys(("attention_mask", "attention_bias", "attention_strided", "attention_grouped"), "attention"),
    **dict.fromkeys(("convolution_bias", "convolution_turned"), "convolution"),
    **dict.fromkeys(("grouped_mm_4", "grouped_mm_16"), "grouped_mm"),
    "linear_flat": "linear",
    "reshaped": "turned",
    "dispatch_many": "dispatch",
}
"""Host figures that not all tables have, and which stands for them there."""

_MANY_HEADS = (128, 2048, 2048, 128)
"""Heads, queries, keys and width of the attention that a device's own fraction is told of."""

_MOST_APART = 4.0
"""How much longer or shorter a layout may take than the measured one, by the tables of another device."""

_NEAREST = {
    "float4": "bfloat16",
    "float8": "bfloat16",
    "float8_block": "bfloat16",
    "float16": "bfloat16",
    "bfloat16": "float32",
    "int16": "bfloat16",
    "float64": "float32",
}


def _peak_of(peaks: Mapping[str, float], dtype: str) -> float:
    while dtype not in peaks and dtype != "float32":
        dtype = _NEAREST.get(dtype, "float32")
    return peaks[dtype]


def _table_dtype(dtype: str) -> str:
    return dtype if dtype in ("float32", "bfloat16") else _NEAREST.get(dtype, "float32")
