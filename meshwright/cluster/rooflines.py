"""Seconds on a perfect device: what measured figures are kept as ratios of, so that sizes between them can be read.

Attention and convolution are worked through in tiles, each by one of the device's units: a last wave of tiles that
does not fill all units takes as long as a full one. `units`: how many there are; one where that is of no account.
"""

from __future__ import annotations

from math import ceil

TILE = 128
_REACHED, _COPIED = 0.6, 0.7
"""Of the peaks, usually. The ratios to what was measured are then near one, and change slowly with the sizes."""
_KERNEL_S = 2e-6


def matmul_base_s(peak: float, bandwidth: float, itemsize: int, m: float, n: float, k: float) -> float:
    """Seconds of a product [m, k] by [k, n]."""
    return max(2.0 * m * n * k / peak, itemsize * (m * k + n * k + m * n) / bandwidth)


def row_base_s(bandwidth: float, itemsize: int, units: float, width: float) -> float:
    return itemsize * units * width / bandwidth


def waves(tiles: float, units: int) -> float:
    """How much longer tiles take than if they filled all units to the end."""
    if units <= 1:
        return 1.0
    full = tiles / units
    return ceil(full) / full if full < 6 else 1 + 0.5 / full


def attention_base_s(
    peak: float, bandwidth: float, itemsize: int, units: int, heads: int, queries: int, keys: int, width: int,
    causal: bool, side: str,
) -> float:  # fmt: skip
    """`heads`: of all samples. Half precision has tiles of 128 queries, single of 64; keys come 64 at a time."""
    tile = TILE if itemsize == 2 else TILE // 2
    rows, columns = -(-queries // tile) * tile, -(-keys // 64) * 64
    share = 0.5 + 32 / columns if causal else 1.0
    products, tensors = (2, 4) if side == "forward" else (5, 8)
    flops = 2.0 * products * heads * rows * columns * width * share
    moved = tensors * itemsize * heads * max(queries, keys) * width
    filled = waves(heads * (rows // tile), units)
    return max(filled * flops / (_REACHED * peak), moved / (_COPIED * bandwidth)) + tensors / 2 * _KERNEL_S


def convolution_base_s(
    peak: float, bandwidth: float, itemsize: int, units: int, sizes: tuple[int, ...], side: str
) -> float:
    """sizes: images, pixels of each that are swept, channels of a group, channels out, elements of a window, pixels
    of each that are there, groups. A window of one is a product; others are brought into another order before and
    after.
    """
    images, image, channels, out, window, wide, groups = sizes
    pixels = images * image
    flops = 2.0 * pixels * channels * out * window
    moved = itemsize * (images * wide * channels * groups + pixels * out + channels * out * window)
    filled = 1.0
    if side != "weight":
        columns = out if side == "forward" else channels * groups
        filled = waves(-(-pixels // TILE) * -(-columns // TILE), units)
    compute_s = filled * flops / (_REACHED * peak)
    if window == 1 and wide == image:
        return max(compute_s, moved / (_COPIED * bandwidth)) + _KERNEL_S
    return compute_s + 2 * moved / (_COPIED * bandwidth) + 3 * _KERNEL_S
