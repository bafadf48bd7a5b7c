"""Seconds on a perfect device: what measured figures are kept as ratios of, so that sizes between them can be read.

Products, attention and convolution are worked through in tiles, each by one of the device's units: a last wave of tiles
that does not fill all units takes as long as a full one. `units`: how many there are; one where that is of no account.
"""

from __future__ import annotations

from math import ceil

from meshwright.caches import CACHES

TILE = 128
_REACHED, _COPIED = 0.6, 0.7
"""Of the peaks, usually. The ratios to what was measured are then near one, and change slowly with the sizes."""
_KERNEL_S = 2e-6


def matmul_base_s(peak: float, bandwidth: float, itemsize: int, m: float, n: float, k: float) -> float:
    """Seconds of a product [m, k] by [k, n]."""
    return max(2.0 * m * n * k / peak, itemsize * (m * k + n * k + m * n) / bandwidth)


_PRODUCT_TILES = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64), (32, 32))
_SLOWER, _WHOLE, _ASKED_S = 0.1, 0.4, 3e-6
"""By which power of their area smaller tiles reach less; how much of a wave that is not full is waited for (several
tiles share a unit); what a product takes at least."""


@CACHES.memoized(maxsize=1 << 15)
def product_base_s(peak: float, bandwidth: float, itemsize: int, units: int, m: float, n: float, k: float) -> float:
    """Seconds of a product [m, k] by [k, n] in the tiles that serve it best; several units may share a tile's sum."""
    best_s, unit = float("inf"), units / peak
    for rows, columns, flops in _TILE_FLOPS:
        tiles = -(-m // rows) * -(-n // columns)
        for share in (1, 2, 4, 8, 16):
            if share > 1 and k < 64 * share:
                break
            full = tiles * share / units
            filled = full if full > 64 else _WHOLE * ceil(full) + (1 - _WHOLE) * max(full, 1.0)
            best_s = min(best_s, filled * flops * (k / share + _FILL) * unit + (_KERNEL_S if share > 1 else 0.0))
            if full > 8:  # sharing has nothing left to fill
                break
    return max(best_s, itemsize * (m * k + n * k + m * n) / (_COPIED * bandwidth)) + _ASKED_S


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
    """sizes: images, output pixels of each, channels of a group, channels out, elements of a window, input pixels
    of each, groups. A window of one is a product; others are brought into another order before and
    after.
    """
    images, image, channels, out, window, wide, groups = sizes
    pixels = images * image
    moved = itemsize * (images * wide * channels * groups + pixels * out + channels * out * window)
    if side == "weight":
        compute_s = _tiled_s(peak, units, out, channels * window, pixels)
    elif side == "forward":
        compute_s = _tiled_s(peak, units, pixels, out, channels * window)
    else:
        compute_s = _tiled_s(peak, units, pixels, channels * groups, out // groups * window)
    if window == 1 and wide == image:
        return max(compute_s, moved / (_COPIED * bandwidth)) + _KERNEL_S
    return compute_s + 2 * moved / (_COPIED * bandwidth) + 3 * _KERNEL_S


_TILES = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64), (32, 64), (64, 32))
_BEST, _SMALLER, _FILL = 0.75, 0.35, 64
"""Of the peak, in the largest tiles; by which power of their area smaller ones reach less; how much longer every tile's
sum is for the filling of its pipeline."""
_SHARES = (1, 2, 4, 8, 16, 32)
_TILE_FLOPS = tuple(
    (rows, columns, 2.0 * rows * columns / (_BEST * min(1.0, (rows * columns / TILE**2) ** _SLOWER)))
    for rows, columns in _PRODUCT_TILES
)


def _tiled_s(peak: float, units: int, m: int, n: int, k: int) -> float:
    """A product [m, k] by [k, n] in the tiles that serve it best; several units may share a tile's sum."""
    if units <= 1:
        return 2.0 * m * n * k / (_REACHED * peak)
    found: list[float] = []
    for rows, columns in _TILES:
        tiles = -(-m // rows) * -(-n // columns)
        rate = _BEST * min(1.0, (rows * columns / TILE**2) ** _SMALLER) * peak / units
        for share in _SHARES:
            if share == 1 or k >= 32 * share:
                full = tiles * share / units
                filled = _WHOLE * ceil(full) + (1 - _WHOLE) * max(full, 1.0)
                sum_s = 2.0 * rows * columns * (k / share + _FILL) / rate
                found.append(filled * sum_s + (_KERNEL_S if share > 1 else 0.0))
    return min(found)
