"""Products, attention and convolution over a few sizes each: the fraction of the roofline that they reach."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor

from meshwright.cluster.calibrate_clock import CpuClock, CudaClock
from meshwright.cluster.calibrate_samples import Sample, row_sample
from meshwright.cluster.device_profile import (
    Axes,
    attention_base_s,
    convolution_base_s,
    filled,
    matmul_base_s,
    row_base_s,
)

Clock = CpuClock | CudaClock
Base = Callable[..., float]
Cells = dict[tuple[int, ...], float]

VARIANTS = ("plain", "causal", "mask", "bias", "strided", "grouped")
"""Attention without a mask, told that it is causal, with a mask, with a mask that is trained (and one whose elements do
not lie side by side), with grouped heads."""

LAYOUTS = ("nt", "nn", "tn")
"""How the factors lie: `nt` is a linear layer's forward, `nn` the gradient of its input, `tn` that of its weight."""


class Rates:
    """What the grids are measured against: nominal rates of this device."""

    def __init__(self, device: torch.device, clock: Clock, peaks: dict[str, float], bandwidth: float) -> None:
        self.device, self.clock, self.peaks, self.bandwidth = device, clock, peaks, bandwidth


def _random(rates: Rates, dtype: torch.dtype, *shape: int) -> Tensor:
    return torch.randn(shape, device=rates.device).to(dtype)


def factors(rates: Rates, layout: str, dtype: torch.dtype, m: int, n: int, k: int) -> Callable[[], Tensor]:
    a = _random(rates, dtype, *((k, m) if layout == "tn" else (m, k)))
    b = _random(rates, dtype, *((n, k) if layout == "nt" else (k, n)))
    left, right = (a.t() if layout == "tn" else a), (b.t() if layout == "nt" else b)
    return lambda: left @ right


def matmul_grid(
    rates: Rates, layout: str, dtype: torch.dtype, sizes: tuple[int, ...], most_flops: float
) -> tuple[Axes, list[float]]:
    name = str(dtype).removeprefix("torch.")
    axes: Axes = (("m", sizes), ("n", sizes), ("k", sizes))
    cells: Cells = {}
    for m, n, k in _points(axes):
        if 2 * m * n * k <= most_flops:
            took_s = rates.clock.device_s(factors(rates, layout, dtype, m, n, k))
            itemsize = dtype.itemsize
            cells[m, n, k] = matmul_base_s(rates.peaks[name], rates.bandwidth, itemsize, m, n, k) / took_s
    return axes, filled(axes, cells)


def misaligned(rates: Rates, dtype: torch.dtype, size: int) -> dict[str, list[list[float]]]:
    """Per layout and dim (m, n, k): how much longer with 2 more than a multiple of 8, and with an odd number."""
    found: dict[str, list[list[float]]] = {}
    for layout in LAYOUTS:
        whole_s = rates.clock.device_s(factors(rates, layout, dtype, size, size, size))
        rows = []
        for dim in range(3):
            row = []
            for extra in (2, 1):
                m, n, k = (size + (extra if i == dim else 0) for i in range(3))
                row.append(max(1.0, rates.clock.device_s(factors(rates, layout, dtype, m, n, k)) / whole_s))
            rows.append(row)
        found[layout] = rows
    return found


def attention_sample(rates: Rates, variant: str, dtype: torch.dtype, rows: int, seq: int, width: int) -> Sample | None:
    """`rows`: queries of all heads; heads are in 8s."""
    heads = 8
    batch = rows // (heads * seq)
    if batch < 1:
        return None
    groups = 2 if variant == "grouped" else heads
    shape = (batch, seq, heads, width)
    query, key, value = (_random(rates, dtype, *shape[:2], h, width).requires_grad_() for h in (heads, groups, groups))
    mask = None
    if variant in ("mask", "bias"):
        mask = _random(rates, dtype, 1, heads, seq, seq).requires_grad_(variant == "bias")
    elif variant == "strided":
        mask = _random(rates, dtype, 1, seq, seq, heads).requires_grad_().permute(0, 3, 1, 2)

    def call() -> Tensor:
        q, k, v = (t.transpose(1, 2) for t in (query, key, value))
        causal = variant in ("causal", "grouped")
        return F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, enable_gqa=variant == "grouped")

    wrt = (query, key, value, *((mask,) if mask is not None and mask.requires_grad else ()))
    return Sample(0, call, wrt)


def attention_grids(
    rates: Rates,
    variant: str,
    dtype: torch.dtype,
    axes: Axes,
    most_flops: float,
) -> dict[str, list[float]]:
    name = str(dtype).removeprefix("torch.")
    both: dict[str, Cells] = {"forward": {}, "backward": {}}
    for rows, seq, width in _points(axes):
        sample = attention_sample(rates, variant, dtype, rows, seq, width)
        if sample is None or 4.0 * rows * seq * width > most_flops:
            continue
        base_s = attention_base_s(rates.peaks[name], rates.bandwidth, dtype.itemsize, rows, seq, width)
        for side, took_s in both_sides(rates.clock, sample):
            both[side][rows, seq, width] = base_s / took_s
    return {side: filled(axes, cells) for side, cells in both.items()}


def convolution_grids(
    rates: Rates, dtype: torch.dtype, axes: Axes, most_flops: float, peak: float
) -> dict[str, list[float]]:
    """Axes: pixels of the result, channels in and out, elements of a window."""
    found: dict[str, Cells] = {"forward": {}, "input": {}, "weight": {}}
    for pixels, channels, out, window in _points(axes):
        if 2.0 * pixels * channels * out * window > most_flops or not _usual(channels, out):
            continue
        base_s = convolution_base_s(peak, rates.bandwidth, dtype.itemsize, pixels, channels, out, window)
        edge = 16 if pixels < 1 << 13 else 32 if pixels < 1 << 16 else 64
        for side, took_s in zip(found, _convolved(rates, dtype, pixels, edge, channels, out, window), strict=True):
            found[side][pixels, channels, out, window] = base_s / took_s
    return {side: filled(axes, cells) for side, cells in found.items()}


def _usual(channels: int, out: int) -> bool:
    """Convolutions change the number of channels by little, but for those that read images."""
    return out / 32 <= channels <= 4 * out and (channels < 16 or out <= 4 * channels)


def _convolved(
    rates: Rates, dtype: torch.dtype, pixels: int, edge: int, channels: int, out: int, window: int
) -> list[float]:
    """Seconds of forward, of the input's gradient and of the weight's, on square images of this edge."""
    side = round(window**0.5)
    x = _random(rates, dtype, max(1, pixels // (edge * edge)), channels, edge, edge).requires_grad_()
    weight = _random(rates, dtype, out, channels, side, side).requires_grad_()

    def call() -> Tensor:
        return F.conv2d(x, weight, None, 1, side // 2)

    result = call()
    gradient = torch.randn_like(result)
    runs = [call, _backward(result, (x,), gradient), _backward(result, (weight,), gradient)]
    return [rates.clock.device_s(run) for run in runs]


def odd_images(rates: Rates, dtype: torch.dtype, channels: int) -> dict[str, list[list[float]]]:
    """Per window (1 and 9): how much longer images of 14 and of 7 pixels take than of 16: forward, input, weight.

    The middle of two sizes: many images of few channels, and few of many.
    """
    found = {}
    for window in (1, 9):
        rows: list[list[float]] = [[1.0] * 3, [1.0] * 3]
        for pixels, width in ((8 * channels, channels), (2 * channels, 2 * channels)):
            even = _convolved(rates, dtype, pixels, 16, width, width, window)
            for row, edge in zip(rows, (14, 7), strict=True):
                took = _convolved(rates, dtype, pixels, edge, width, width, window)
                share = pixels / (max(1, pixels // (edge * edge)) * edge * edge)
                row[:] = [now * max(1.0, share * a / b) ** 0.5 for now, a, b in zip(row, took, even, strict=True)]
        found[str(window)] = rows
    return found


def row_grids(rates: Rates, kernel: str, dtype: torch.dtype, axes: Axes, most: int) -> dict[str, list[float]]:
    """Axes: units (rows, groups, channels) side by side, elements of each."""
    found: dict[str, Cells] = {"forward": {}, "backward": {}}
    for units, width in _points(axes):
        if units * width <= most:
            sample = row_sample(kernel, units, width, dtype, rates.device)
            for side, took_s in both_sides(rates.clock, sample):
                found[side][units, width] = row_base_s(rates.bandwidth, dtype.itemsize, units, width) / took_s
    return {side: filled(axes, cells) for side, cells in found.items()}


def grouped_factors(rates: Rates, dtype: torch.dtype, rows: int, size: int, groups: int = 8) -> list[float]:
    """How much longer rows of several groups take than rows of one: forward, input's and weights' gradients."""
    x = _random(rates, dtype, rows, size).requires_grad_()
    weights = _random(rates, dtype, groups, size, 2 * size).requires_grad_()
    ends = torch.arange(1, groups + 1, device=rates.device, dtype=torch.int32) * (rows // groups)
    result = F.grouped_mm(x, weights, offs=ends)
    gradient = torch.randn_like(result)
    took = [rates.clock.device_s(lambda: F.grouped_mm(x, weights, offs=ends))]
    took += [rates.clock.device_s(_backward(result, (tensor,), gradient)) for tensor in (x, weights)]
    plain = [("nt", rows, 2 * size, size), ("nn", rows, size, 2 * size), ("tn", size, 2 * size, rows)]
    return [
        took_s / rates.clock.device_s(factors(rates, layout, dtype, m, n, k))
        for took_s, (layout, m, n, k) in zip(took, plain, strict=True)
    ]


def both_sides(clock: Clock, sample: Sample) -> Iterator[tuple[str, float]]:
    """Seconds of forward and, where there are gradients, of backward."""
    yield "forward", clock.device_s(sample.call)
    if sample.wrt:
        result = sample.call()
        yield "backward", clock.device_s(_backward(result, sample.wrt, torch.randn_like(result)))


def _backward(result: Tensor, wrt: tuple[Tensor, ...], gradient: Tensor) -> Callable[[], object]:
    return lambda: torch.autograd.grad(result, wrt, gradient, retain_graph=True)


def _points(axes: Axes) -> Iterator[tuple[int, ...]]:
    return (tuple(point) for point in product(*(sizes for _, sizes in axes)))
