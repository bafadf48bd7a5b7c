"""Products and rows over a few sizes each: the fraction of the roofline that they reach."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor

from meshwright.cluster.calibrate.clock import CpuClock, CudaClock
from meshwright.cluster.calibrate.samples import Sample, row_sample
from meshwright.cluster.profile_tables import Axes, filled
from meshwright.cluster.rooflines import matmul_base_s, row_base_s

Clock = CpuClock | CudaClock
Cells = dict[tuple[int, ...], float]

LAYOUTS = ("nt", "nn", "tn", "bias")
"""How the factors lie: `nt` is a linear layer's forward, `nn` the gradient of its input, `tn` that of its weight;
`bias`: `nt` with a bias, which other kernels serve."""
_LITTLE = 32
"""Products of several sizes below it are all alike."""


class Rates:
    """What is measured against: nominal rates of this device, and how many units work side by side in it."""

    def __init__(
        self, device: torch.device, clock: Clock, peaks: dict[str, float], bandwidth: float, units: int = 1
    ) -> None:
        self.device, self.clock, self.peaks, self.bandwidth, self.units = device, clock, peaks, bandwidth, units


def random_tensor(rates: Rates, dtype: torch.dtype, *shape: int) -> Tensor:
    return torch.randn(shape, device=rates.device).to(dtype)


def factors(rates: Rates, layout: str, dtype: torch.dtype, m: int, n: int, k: int) -> Callable[[], Tensor]:
    a = random_tensor(rates, dtype, *((k, m) if layout == "tn" else (m, k)))
    b = random_tensor(rates, dtype, *((n, k) if layout in ("nt", "bias") else (k, n)))
    left, right = (a.t() if layout == "tn" else a), (b.t() if layout in ("nt", "bias") else b)
    if layout == "bias":
        bias = random_tensor(rates, dtype, n)
        return lambda: torch.addmm(bias, left, right)
    return lambda: left @ right


def matmul_grid(
    rates: Rates, layout: str, dtype: torch.dtype, sizes: tuple[int, ...], most_flops: float
) -> tuple[Axes, list[float]]:
    name = text_of(dtype)
    axes: Axes = (("m", sizes), ("n", sizes), ("k", sizes))
    cells: Cells = {}
    for m, n, k in _points(axes):
        if 2 * m * n * k <= most_flops and sum(size < _LITTLE < sizes[-1] / 64 for size in (m, n, k)) < 2:
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
    x = random_tensor(rates, dtype, rows, size).requires_grad_()
    weights = random_tensor(rates, dtype, groups, size, 2 * size).requires_grad_()
    ends = torch.arange(1, groups + 1, device=rates.device, dtype=torch.int32) * (rows // groups)
    result = F.grouped_mm(x, weights, offs=ends)
    gradient = torch.randn_like(result)
    took = [rates.clock.device_s(lambda: F.grouped_mm(x, weights, offs=ends))]
    took += [rates.clock.device_s(backward_of(result, (tensor,), gradient)) for tensor in (x, weights)]
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
        yield "backward", clock.device_s(backward_of(result, sample.wrt, torch.randn_like(result)))


def backward_of(result: Tensor, wrt: tuple[Tensor, ...], gradient: Tensor) -> Callable[[], object]:
    return lambda: torch.autograd.grad(result, wrt, gradient, retain_graph=True)


def _points(axes: Axes) -> Iterator[tuple[int, ...]]:
    return (tuple(point) for point in product(*(sizes for _, sizes in axes)))


def text_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def short(figure: float) -> float:
    """With the digits that a profile has."""
    return float(f"{figure:.4g}")
