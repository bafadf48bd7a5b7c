"""Calibration: measure the device at hand and write down what pricing needs to know of it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from meshwright.cluster.calibrate_clock import CpuClock, CudaClock, clock_for
from meshwright.cluster.calibrate_eager import eager_factors, probe_s
from meshwright.cluster.calibrate_grids import (
    LAYOUTS,
    VARIANTS,
    Rates,
    attention_grids,
    both_sides,
    convolution_grids,
    factors,
    grouped_factors,
    matmul_grid,
    misaligned,
    odd_images,
    row_grids,
)
from meshwright.cluster.calibrate_samples import HOST, KERNELS, ROWS, SLOW, Make, Sample
from meshwright.cluster.device_profile import Axes

SCHEMA = 1
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Effort:
    """How large the samples are: a GPU is asked for more than a CPU."""

    numels: tuple[int, ...]
    rows: Axes
    matmul: tuple[int, ...]
    attention: Axes
    convolution: Axes
    variants: Axes
    most_flops: dict[str, float]
    most_elements: int
    peak_size: int
    aligned_size: int
    copy_bytes: int
    optimizer_bytes: tuple[int, ...]


CUDA = Effort(
    numels=(1 << 12, 1 << 16, 1 << 20, 1 << 22, 1 << 24, 1 << 26),
    rows=(
        ("units", (16, 64, 256, 1024, 4096, 16384, 65536)),
        ("width", (64, 256, 768, 2048, 8192, 32768, 1 << 19)),
    ),
    matmul=(32, 128, 256, 768, 1024, 3072, 8192),
    attention=(("rows", (1 << 11, 1 << 14, 1 << 17)), ("seq", (128, 512, 2048)), ("width", (64, 128))),
    variants=(("rows", (1 << 12, 1 << 17)), ("seq", (128, 512, 2048)), ("width", (64,))),
    convolution=(
        ("pixels", (1 << 8, 1 << 11, 1 << 14, 1 << 17)),
        ("channels", (4, 64, 128, 256, 512, 1024)),
        ("out", (64, 128, 256, 512, 1024)),
        ("window", (1, 9)),
    ),
    most_flops={"float32": 3e11, "bfloat16": 1.2e12, "float16": 1.2e12},
    most_elements=1 << 26,
    peak_size=8192,
    aligned_size=2048,
    copy_bytes=1 << 30,
    optimizer_bytes=(1 << 18, 1 << 22, 1 << 26, 1 << 29),
)
CPU = Effort(
    numels=(1 << 10, 1 << 14, 1 << 17, 1 << 20, 1 << 22),
    rows=(("units", (16, 256, 4096)), ("width", (64, 1024, 32768))),
    matmul=(16, 64, 256, 1024),
    attention=(("rows", (1 << 9, 1 << 12)), ("seq", (32, 128, 512)), ("width", (16, 64))),
    variants=(("rows", (1 << 9, 1 << 12)), ("seq", (32, 128, 512)), ("width", (64,))),
    convolution=(
        ("pixels", (1 << 8, 1 << 11, 1 << 13)),
        ("channels", (4, 32, 128)),
        ("out", (16, 128)),
        ("window", (1, 9)),
    ),
    most_flops={"float32": 3e8, "bfloat16": 3e8},
    most_elements=1 << 22,
    peak_size=512,
    aligned_size=256,
    copy_bytes=1 << 25,
    optimizer_bytes=(1 << 14, 1 << 18, 1 << 22),
)


def calibrate(
    device: torch.device, nominal: dict[str, Any] | None = None, progress: Progress = lambda text: None
) -> dict[str, Any]:
    """A device profile as JSON has it. `nominal`: name, peaks and memory bandwidth where they are known."""
    start = time.perf_counter()
    effort, clock = (CUDA, clock_for(device)) if device.type == "cuda" else (CPU, clock_for(device))
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(0)
        found = _figures(device, effort, clock, nominal)
        rates = Rates(device, clock, found["peaks"], found["memory_bandwidth"])
        dtypes = [torch.float32, torch.bfloat16]
        for name, step in _steps(rates, effort, dtypes, found):
            progress(f"{name} ({time.perf_counter() - start:.0f} s)")
            step()
    found["measured"] = {"torch": torch.__version__, "seconds": round(time.perf_counter() - start, 1)}
    if device.type == "cuda":
        found["measured"]["probe_s"] = _short(probe_s(device))
    return found


def _steps(
    rates: Rates, effort: Effort, dtypes: list[torch.dtype], found: dict[str, Any]
) -> Iterator[tuple[str, Callable[[], None]]]:
    yield "kernels bound by memory", lambda: found.update(kernels=_kernels(rates, effort, dtypes))
    yield "rows", lambda: found["grids"].update(_rows(rates, effort, dtypes))
    yield "products", lambda: found["grids"].update(_matmuls(rates, effort, dtypes))
    yield "attention", lambda: found["grids"].update(_attentions(rates, effort, dtypes))
    yield "convolution", lambda: found["grids"].update(_convolutions(rates, effort, dtypes))
    yield "odd sizes", lambda: found.update(factors=_factors(rates, effort, dtypes))
    yield "optimizer", lambda: found.update(optimizers=_optimizers(rates, effort, dtypes))
    yield "host", lambda: found.update(host=_hosts(rates, dtypes, found["optimizers"]))


def _figures(
    device: torch.device, effort: Effort, clock: CpuClock | CudaClock, nominal: dict[str, Any] | None
) -> dict[str, Any]:
    bare = Rates(device, clock, {}, 1.0)
    n = effort.peak_size
    reached = {
        name: 2.0 * n**3 / clock.device_s(factors(bare, "nn", getattr(torch, name), n, n, n))
        for name in ("float32", "bfloat16", *(("float64",) if device.type == "cpu" else ()))
    }
    source = torch.zeros(effort.copy_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copied = 2.0 * effort.copy_bytes / clock.device_s(lambda: target.copy_(source))
    one = torch.ones(1, device=device)
    asked_s = clock.host_s(lambda: one + 1) or clock.device_s(lambda: one + 1)
    known = nominal or {}
    bandwidth = known.get("memory_bandwidth", copied)
    return {
        "schema": SCHEMA,
        "name": known.get("name") or _name(device),
        "kind": device.type,
        "peaks": dict(known.get("peaks") or {name: _short(rate) for name, rate in reached.items()}),
        "memory_bytes": known.get("memory_bytes") or _memory_bytes(device),
        "reserve_bytes": known.get("reserve_bytes") or (3 << 29 if device.type == "cuda" else 1 << 29),
        "memory_bandwidth": _short(bandwidth),
        "launch_s": _short(asked_s),
        "reached": {**{name: _short(rate) for name, rate in reached.items()}, "copy": _short(copied)},
        "host_link": _host_link(device, clock, min(effort.copy_bytes, 1 << 28)),
        "grids": {},
        "sources": {},
    }


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def _memory_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _host_link(device: torch.device, clock: CpuClock | CudaClock, n_bytes: int) -> dict[str, float]:
    if device.type == "cpu":
        return {}
    here = torch.zeros(n_bytes, dtype=torch.uint8).pin_memory()
    there = torch.zeros(n_bytes, dtype=torch.uint8, device=device)
    return {
        "to_device": _short(n_bytes / clock.device_s(lambda: there.copy_(here, non_blocking=True))),
        "from_device": _short(n_bytes / clock.device_s(lambda: here.copy_(there, non_blocking=True))),
    }


def _kernels(rates: Rates, effort: Effort, dtypes: list[torch.dtype]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, make in KERNELS.items():
        for dtype in dtypes:
            for n in effort.numels[: -1 if name in SLOW else None]:
                for side, work, took_s in _kernel(rates, make, n, dtype):
                    found.setdefault(f"{name}.{side}", {}).setdefault(_text(dtype), []).append([work, _short(took_s)])
    return found


def _kernel(rates: Rates, make: Make, n: int, dtype: torch.dtype) -> Iterator[tuple[str, int, float]]:
    """Nothing where the device cannot run it."""
    try:
        sample = make(n, dtype, rates.device)
        yield from ((side, sample.work, took_s) for side, took_s in both_sides(rates.clock, sample))
    except (RuntimeError, NotImplementedError):
        return


def _rows(rates: Rates, effort: Effort, dtypes: list[torch.dtype]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for kernel in ROWS:
        for dtype in dtypes:
            for side, fractions in row_grids(rates, kernel, dtype, effort.rows, effort.most_elements).items():
                found.setdefault(f"{kernel}.{side}", {})[_text(dtype)] = _grid(effort.rows, fractions)
    return found


def _matmuls(rates: Rates, effort: Effort, dtypes: list[torch.dtype]) -> dict[str, Any]:
    return {
        f"matmul.{layout}": {
            _text(dtype): _grid(*matmul_grid(rates, layout, dtype, effort.matmul, effort.most_flops[_text(dtype)]))
            for dtype in dtypes
        }
        for layout in LAYOUTS
    }


def _attentions(rates: Rates, effort: Effort, dtypes: list[torch.dtype]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for variant in VARIANTS:
        for dtype in dtypes:
            most = effort.most_flops[_text(dtype)]
            axes = effort.attention if variant == "causal" else effort.variants
            for side, fractions in attention_grids(rates, variant, dtype, axes, most).items():
                found.setdefault(f"attention.{variant}.{side}", {})[_text(dtype)] = _grid(axes, fractions)
    return found


def _convolutions(rates: Rates, effort: Effort, dtypes: list[torch.dtype]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for dtype in dtypes:
        most = effort.most_flops[_text(dtype)]
        # Convolutions in single precision run on TF32 units where there are any: torch's default.
        peak = rates.peaks.get("tf32", rates.peaks["float32"]) if dtype is torch.float32 else rates.peaks[_text(dtype)]
        for side, fractions in convolution_grids(rates, dtype, effort.convolution, most, peak).items():
            found.setdefault(f"convolution.{side}", {})[_text(dtype)] = _grid(effort.convolution, fractions)
    return found


def _factors(rates: Rates, effort: Effort, dtypes: list[torch.dtype]) -> dict[str, Any]:
    size = effort.aligned_size
    odd = {_text(dtype): misaligned(rates, dtype, size) for dtype in dtypes}
    images = {_text(dtype): odd_images(rates, dtype, size // 4) for dtype in dtypes}
    grouped: dict[str, Any] = {}
    for dtype in dtypes:
        try:
            rows = [[n, *grouped_factors(rates, dtype, n, size // 2)] for n in (size, 8 * size)]
        except (RuntimeError, NotImplementedError):
            continue
        grouped[_text(dtype)] = rows
    return {"misaligned": _shortened(odd), "images": _shortened(images), "grouped": _shortened(grouped)}


def _shortened(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _shortened(value) for key, value in tree.items()}
    return [_shortened(value) for value in tree] if isinstance(tree, list) else _short(tree)


def _optimizers(rates: Rates, effort: Effort, dtypes: list[torch.dtype]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, options in (("adamw.foreach", {"foreach": True}), ("adamw.fused", {"fused": True})):
        few_s, many_s = (_step_s(rates, [1024] * n, torch.float32, options) for n in (16, 128))
        tensor_s, tensor_device_s = ((many_s[side] - few_s[side]) / 112 for side in (0, 1))
        curves = {}
        for dtype in dtypes:
            rows = []
            for n_bytes in effort.optimizer_bytes:
                count = n_bytes // dtype.itemsize
                each = min(count, 1 << 22)
                sizes = [each] * max(1, count // each)
                device_s = _step_s(rates, sizes, dtype, options)[1] - len(sizes) * max(0.0, tensor_device_s)
                rows.append([sum(sizes) * dtype.itemsize, _short(max(device_s, 1e-7))])
            curves[_text(dtype)] = rows
        found[name] = {
            "fixed_s": _short(max(0.0, few_s[0] - 16 * tensor_s)),
            "tensor_s": _short(max(0.0, tensor_s)),
            "tensor_device_s": _short(max(0.0, tensor_device_s)),
            "curves": curves,
        }
    return found


def _step_s(rates: Rates, sizes: list[int], dtype: torch.dtype, options: dict[str, bool]) -> tuple[float, float]:
    """(host, device) seconds of one optimizer step."""
    tensors = [torch.randn(n, device=rates.device).to(dtype).requires_grad_() for n in sizes]
    for tensor in tensors:
        tensor.grad = torch.randn_like(tensor)
    optimizer = torch.optim.AdamW(tensors, lr=1e-5, **options)  # type: ignore[arg-type]
    optimizer.step()
    return rates.clock.host_s(optimizer.step, 10) * 10, rates.clock.device_s(optimizer.step)


def _hosts(rates: Rates, dtypes: list[torch.dtype], optimizers: dict[str, Any]) -> dict[str, Any]:
    """Host seconds of asking for each op: forward and backward. On a CPU the kernels' own figures hold these."""
    if not isinstance(rates.clock, CudaClock):
        return {}
    step = optimizers["adamw.foreach"]
    found: dict[str, Any] = {}
    for dtype in dtypes:
        ops = _host(rates, dtype)
        found[_text(dtype)] = ops
        ops["eager"] = eager_factors(rates.device, dtype, ops, (step["fixed_s"], step["tensor_s"]))
    return found


def _host(rates: Rates, dtype: torch.dtype) -> dict[str, list[float]]:
    clock, count = rates.clock, 16
    found: dict[str, list[float]] = {}
    for name, make in {**KERNELS, **HOST}.items():
        try:
            found[name] = _host_of(clock, make, dtype, rates.device, count)
        except (RuntimeError, NotImplementedError):  # what the device cannot run
            found[name] = [0.0, 0.0]
    module, x = nn.Identity(), torch.ones(1, device=rates.device)
    found["module"] = [_short(clock.host_s(lambda: module(x))), 0.0]
    found["start"] = [0.0, _short(_start_s(clock, dtype, rates.device, found["scaled"][1]))]
    # Asked for side by side, each op also has a root and a leaf to be started from and handed to: a chain has not.
    beside = max(0.0, found["view"][1] - _chained_s(clock, dtype, rates.device, count))
    for pair in found.values():
        if pair[1] and pair is not found["start"]:
            pair[1] = _short(max(pair[1] - beside, pair[1] / 8))
    return found


def _chained_s(clock: CpuClock | CudaClock, dtype: torch.dtype, device: torch.device, count: int) -> float:
    """Backward of one view in a chain of them."""
    x = torch.ones(256, device=device, dtype=dtype, requires_grad=True)
    y = x.view(16, 16)
    for _ in range(count - 1):
        y = y.view(16, 16)
    gradient = torch.ones_like(y)
    return clock.host_s(lambda: torch.autograd.grad(y, x, gradient, retain_graph=True), count)


def _host_of(
    clock: CpuClock | CudaClock, make: Make, dtype: torch.dtype, device: torch.device, count: int
) -> list[float]:
    samples = [make(1 << 12, dtype, device) for _ in range(count)]
    for sample in samples:
        sample.call()
    forward_s = clock.host_s(lambda: [sample.call() for sample in samples], count)
    if not samples[0].wrt:
        return [_short(forward_s), 0.0]
    return [_short(forward_s), _short(clock.host_s(_joint(samples), count))]


def _joint(samples: list[Sample]) -> Callable[[], Any]:
    """Backward of several ops at once: what starting it costs hardly counts then."""
    results = [sample.call() for sample in samples]
    gradients = [torch.ones_like(result) for result in results]
    wrt = [tensor for sample in samples for tensor in sample.wrt]
    return lambda: torch.autograd.grad(results, wrt, gradients, retain_graph=True)


def _start_s(clock: CpuClock | CudaClock, dtype: torch.dtype, device: torch.device, op_s: float) -> float:
    sample = HOST["scaled"](64, dtype, device)
    return max(0.0, clock.host_s(_joint([sample])) - op_s)


def _grid(axes: Axes, fractions: list[float]) -> dict[str, Any]:
    return {"axes": {name: list(sizes) for name, sizes in axes}, "fractions": fractions}


def _text(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _short(figure: float) -> float:
    return float(f"{figure:.4g}")
