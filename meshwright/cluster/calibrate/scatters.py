"""Attention and convolution at scattered sizes: how much longer they take than on a perfect device."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from meshwright.cluster.calibrate.grids import Rates, backward_of, both_sides, random_tensor, short, text_of
from meshwright.cluster.calibrate.samples import Sample
from meshwright.cluster.device_profile import alignment
from meshwright.cluster.profile_load import scatter_of
from meshwright.cluster.rooflines import attention_base_s, convolution_base_s

VARIANTS = ("plain", "causal", "mask", "bias", "strided", "grouped")
"""Attention without a mask, told that it is causal, with a mask, with a mask that is trained (and one whose elements do
not lie side by side), with grouped heads."""

_TURNS = (1, 1, 1, 2, 0.5, 4, 0.25)
WINDOWS = (
    *(((3, 3), 1),) * 12,
    *(
        ((3, 3), 2),
        ((1, 1), 2),
        ((2, 2), 2),
        ((2, 2), 2),
        ((2, 2), 2),
        ((1, 7), 1),
        ((7, 1), 1),
        ((5, 5), 1),
        ((7, 7), 2),
    ),
    *(((3, 3), 2), ((1, 1), 2), ((3, 3), 1), ((16, 16), 16)),
)
"""Edges of a window and the stride, as often as they are sampled."""


@dataclass(frozen=True)
class Spread:
    """Which sizes are sampled, and how many times: attention plain and causal, its other variants, convolutions with a
    window of one, with larger ones; these two until `seconds` are over. large: attention of whole batches of language
    models besides, of which there would be too few; windows: of windows of images, with and without a mask."""

    attention: int
    large: tuple[tuple[int, int, int], ...]
    windows: tuple[tuple[int, int, int], ...]
    variants: int
    plain: int
    window: int
    seconds: float
    heads: tuple[int, ...]
    seqs: tuple[int, ...]
    widths: tuple[int, ...]
    images: tuple[int, ...]
    edges: tuple[int, ...]
    channels: tuple[int, ...]
    most_elements: int


Most = Mapping[torch.dtype, float]
"""FLOPs of the largest sample in each dtype."""


def attentions(rates: Rates, spread: Spread, most: Most) -> dict[str, Any]:
    """Points and ratios by variant and dtype."""
    found: dict[str, Any] = {}
    for variant in VARIANTS:
        count = spread.attention if variant in ("plain", "causal") else spread.variants
        for dtype, flops in most.items():
            large = spread.large if count == spread.attention and dtype.itemsize == 2 else ()
            windows = spread.windows if variant in ("plain", "causal", "mask", "bias") else ()
            for point in (*attention_points(spread, count, flops / 3), *large, *windows):
                _keep(found, f"attention.{variant}", dtype, *_attention(rates, variant, dtype, point))
    return found


def convolutions(rates: Rates, spread: Spread, most: Most) -> dict[str, Any]:
    """Likewise by kind of window; shuffled, so that what there is time for is of all kinds."""
    found: dict[str, Any] = {}
    cases = [
        (name, dtype, point)
        for name, count in (("plain", spread.plain), ("window", spread.window))
        for dtype, flops in most.items()
        for point in convolution_points(spread, name, count, flops)
    ]
    Random(0).shuffle(cases)
    end = time.perf_counter() + spread.seconds
    for name, dtype, point in cases:
        _keep(found, f"convolution.{name}", dtype, *_convolution(rates, dtype, point))
        if time.perf_counter() > end and len(found) == 2:
            break
    for name, by in found.items():
        for text, one in by.items():
            one["doubts"] = scatter_of(name, text, one).doubts()
    return found


def attention_points(spread: Spread, count: int, most_flops: float) -> list[tuple[int, int, int]]:
    """Heads of all samples, queries and keys of each, width. Widths come as often as models have them."""
    rng = Random(count)
    found: set[tuple[int, int, int]] = set()
    for _ in range(100 * count):
        heads, seq, width = rng.choice(spread.heads), rng.choice(spread.seqs), rng.choice(spread.widths)
        fits = 10.0 * heads * seq * seq * width <= most_flops and heads * seq * max(width, 64) <= spread.most_elements
        if fits and heads * seq >= spread.heads[0] * spread.seqs[0] * 4 and len(found) < count:
            found.add((heads, seq, width))
    return sorted(found)


Convolution = tuple[int, int, int, int, tuple[int, int], int]
"""Images, edge of each, channels in and out, edges of a window, stride."""


def convolution_points(spread: Spread, name: str, count: int, most_flops: float) -> list[Convolution]:
    rng = Random(count)
    found: set[Convolution] = set()
    for number in range(200 * count):
        images, edge, channels = rng.choice(spread.images), rng.choice(spread.edges), rng.choice(spread.channels)
        # Half of them as models have them: as many channels out as in, twice, a half, four times, a fourth.
        usual = [size for size in _TURNS if spread.channels[0] <= size * channels <= spread.channels[-1]]
        near = [size for size in spread.channels if channels / 4 <= size <= 4 * channels]
        out = int(channels * rng.choice(usual)) if rng.random() < 0.5 else rng.choice(near)
        window, stride = ((1, 1), 1) if name == "plain" else WINDOWS[number % len(WINDOWS)]
        if window[0] >= 7 and stride > 1:  # the first layer of a model
            channels = 3
        across = edge
        if stride > 2:  # patches side by side
            edge = edge * stride
        pixels = images * across * across
        flops = 2.0 * pixels * channels * out * window[0] * window[1]
        fits = pixels * max(channels, out) <= spread.most_elements and flops <= most_flops / 4
        if fits and across * max(channels, out) <= 1 << 14 and edge >= stride:
            found.add((images, edge, channels, out, window, stride))
        if len(found) == count:
            break
    return sorted(found)


def attention_sample(rates: Rates, variant: str, dtype: torch.dtype, heads: int, seq: int, width: int) -> Sample:
    """`heads` of all samples, 8 to each where that divides them."""
    each = next(n for n in (8, 4, 3, 2, 1) if heads % n == 0)
    groups = max(1, each // 4) if variant == "grouped" else each
    query, key, value = (
        random_tensor(rates, dtype, heads // each, seq, n, width).requires_grad_() for n in (each, groups, groups)
    )
    mask = None
    if variant in ("mask", "bias"):
        mask = random_tensor(rates, dtype, 1, each, seq, seq).requires_grad_(variant == "bias")
        if mask.requires_grad:  # the sum over samples is an op of its own
            mask = mask.expand(heads // each, each, seq, seq).detach().requires_grad_()
    elif variant == "strided":
        mask = random_tensor(rates, dtype, 1, seq, seq, each).requires_grad_().permute(0, 3, 1, 2)

    def call() -> Tensor:
        q, k, v = (t.transpose(1, 2) for t in (query, key, value))
        causal = variant in ("causal", "grouped")
        return F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, enable_gqa=groups != each)

    wrt = (query, key, value, *((mask,) if mask is not None and mask.requires_grad else ()))
    return Sample(0, call, wrt)


def _attention(
    rates: Rates, variant: str, dtype: torch.dtype, point: tuple[int, int, int]
) -> tuple[list[int], dict[str, float]]:
    heads, seq, width = point
    sample = attention_sample(rates, variant, dtype, heads, seq, width)
    peak, causal = rates.peaks[text_of(dtype)], variant in ("causal", "grouped")
    found = {}
    for side, took_s in both_sides(rates.clock, sample):
        base_s = attention_base_s(
            peak, rates.bandwidth, dtype.itemsize, rates.units, heads, seq, seq, width, causal, side
        )
        found[side] = took_s / base_s
    return [heads, seq, width], found


def _convolution(
    rates: Rates, dtype: torch.dtype, point: Convolution, lies: torch.memory_format = torch.contiguous_format
) -> tuple[list[int], dict[str, float]]:
    images, edge, channels, out, window, stride = point
    calls, positions = convolution_calls(rates, dtype, point, lies)
    # Convolutions in single precision run on TF32 units where there are any: torch's default.
    peak = rates.peaks.get("tf32", rates.peaks["float32"]) if dtype is torch.float32 else rates.peaks[text_of(dtype)]
    elements, wide = window[0] * window[1], edge * edge
    sizes = (images, positions, channels, out, elements, wide, 1)
    found = {}
    for side, run in calls:
        base_s = convolution_base_s(peak, rates.bandwidth, dtype.itemsize, rates.units, sizes, side)
        found[side] = rates.clock.device_s(run, rounds=1) / base_s
    if elements == 1 and stride == 1:
        return [images, positions, channels, out, alignment(positions, dtype.itemsize)], found
    return [images, positions, channels, out, elements, -(-wide // positions)], found


LAST: tuple[Convolution, ...] = (
    (32, 56, 256, 128, (1, 1), 1),
    (32, 28, 512, 1024, (1, 1), 1),
    (64, 14, 2048, 512, (1, 1), 1),
    (32, 56, 128, 128, (3, 3), 1),
    (32, 28, 256, 512, (3, 3), 1),
    (64, 14, 512, 1024, (3, 3), 1),
)
"""Convolutions of images that lie channels last: large, so that what they reach is seen."""


def channels_last(rates: Rates, dtype: torch.dtype) -> dict[str, float]:
    """What such convolutions take over their roofline, in the middle: 1 x 1 windows and others."""
    found: dict[str, list[float]] = {"plain": [], "window": []}
    for point in LAST:
        ratios = _convolution(rates, dtype, point, torch.channels_last)[1]
        found["plain" if point[4] == (1, 1) else "window"] += ratios.values()
    return {name: median(ratios) for name, ratios in found.items()}


def convolution_calls(
    rates: Rates, dtype: torch.dtype, point: Convolution, lies: torch.memory_format = torch.contiguous_format
) -> tuple[list[tuple[str, Callable[[], object]]], int]:
    """Forward, the input's gradient and the weight's; and at how many positions of each image the window lies."""
    images, edge, channels, out, window, stride = point
    x = random_tensor(rates, dtype, images, channels, edge, edge).to(memory_format=lies).requires_grad_()
    weight = random_tensor(rates, dtype, out, channels, *window).to(memory_format=lies).requires_grad_()
    padding = [size // 2 if size % 2 else 0 for size in window]

    def call() -> Tensor:
        return F.conv2d(x, weight, None, stride, padding)

    result = call()
    gradient = torch.randn_like(result)
    runs = [call, backward_of(result, (x,), gradient), backward_of(result, (weight,), gradient)]
    return list(zip(("forward", "input", "weight"), runs, strict=True)), result.shape[2] * result.shape[3]


def _keep(found: dict[str, Any], name: str, dtype: torch.dtype, place: list[int], ratios: dict[str, float]) -> None:
    here = found.setdefault(name, {}).setdefault(text_of(dtype), {"points": [], "ratios": {}})
    here["points"].append(place)
    for side, ratio in ratios.items():
        here["ratios"].setdefault(side, []).append(short(ratio))
