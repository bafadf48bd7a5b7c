"""Calibration: measure the device at hand and write down what pricing needs to know of it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch

from meshwright.cluster.calibrate.clock import CpuClock, CudaClock, clock_for
from meshwright.cluster.calibrate.grids import (
    LAYOUTS,
    Rates,
    both_sides,
    factors,
    grouped_factors,
    matmul_grid,
    misaligned,
    row_grids,
)
from meshwright.cluster.calibrate.host import eager_table, pair_table
from meshwright.cluster.calibrate.optimizer import optimizers, scale_to_a_step
from meshwright.cluster.calibrate.pace import Pace
from meshwright.cluster.calibrate.samples import GPU_ONLY, KERNELS, MORE, ROWS, SLOW, Make
from meshwright.cluster.calibrate.scatters import Spread, attentions, channels_last, convolutions
from meshwright.cluster.calibrate.steady import steady
from meshwright.cluster.profile_tables import Axes

SCHEMA = 2
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Effort:
    """How large the samples are: a GPU is asked for more than a CPU."""

    numels: tuple[int, ...]
    rows: Axes
    matmul: tuple[int, ...]
    biased: tuple[int, ...]
    spread: Spread
    most_flops: dict[str, float]
    most_elements: int
    peak_size: int
    aligned_size: int
    copy_bytes: int
    optimizer_bytes: tuple[int, ...]


CUDA = Effort(
    numels=(1 << 12, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 23, 1 << 24, 1 << 26),
    rows=(
        ("units", (4, 16, 64, 256, 1024, 4096, 16384, 65536)),
        ("width", (16, 64, 256, 768, 2048, 8192, 16384, 32768, 1 << 19)),
    ),
    matmul=(8, 32, 128, 256, 512, 1024, 3072, 8192),
    biased=(8, 128, 256, 768, 1536, 3072, 8192),
    spread=Spread(
        attention=52,
        large=((256, 2048, 128), (512, 1024, 64), (64, 4096, 128), (1024, 512, 64), (2048, 256, 64)),
        windows=(*((41472, 49, 32), (10368, 49, 32), (2592, 64, 32), (1296, 144, 32), (640, 64, 64), (3072, 49, 64)),),
        variants=8,
        plain=900,
        window=1000,
        seconds=36.0,
        heads=(8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024),
        seqs=(64, 128, 160, 192, 256, 320, 384, 512, 768, 1024, 1536, 2048, 4096),
        widths=(64, 64, 64, 128, 128, 32, 80, 96, 256),
        images=(1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128),
        edges=(4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 16, 18, 20, 22, 24, 26, 28, 32, 36, 40, 48, 52, 56, 64, 80, 96, 112),
        channels=(
            *(32, 48, 64, 64, 72, 80, 96, 112, 128, 128, 144, 160, 192, 224, 256, 256, 288, 320, 384, 448, 512, 512),
            *(576, 640, 768, 896, 1024, 1152, 1536, 2048),
        ),
        most_elements=1 << 26,
    ),
    most_flops={"float32": 1.5e11, "bfloat16": 1.2e12, "float16": 1.2e12},
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
    biased=(16, 64, 256, 1024),
    spread=Spread(
        attention=24,
        large=(),
        windows=(),
        variants=8,
        plain=24,
        window=36,
        seconds=float("inf"),
        heads=(2, 4, 8, 12, 16, 32, 64),
        seqs=(16, 32, 64, 128, 256, 512),
        widths=(16, 32, 64, 64, 128),
        images=(1, 2, 4, 8, 16, 32),
        edges=(4, 7, 8, 12, 14, 16, 24, 28, 32, 56),
        channels=(8, 16, 32, 64, 128, 256, 512),
        most_elements=1 << 20,
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
        progress("rates of products and copies (0 s; all of it takes some minutes)")
        found = _figures(device, effort, clock, nominal)
        rates = Rates(device, clock, found["peaks"], found["memory_bandwidth"], found["units"])
        dtypes = [torch.float32, torch.bfloat16]
        for name, step in _steps(rates, effort, dtypes, found):
            progress(f"{name} ({time.perf_counter() - start:.0f} s)")
            step()
    found["measured"] = {"torch": torch.__version__, "seconds": round(time.perf_counter() - start, 1)}
    if "pace_s" in found:
        found["measured"]["pace_s"] = found.pop("pace_s")
    return found


def _steps(
    rates: Rates, effort: Effort, dtypes: list[torch.dtype], found: dict[str, Any]
) -> Iterator[tuple[str, Callable[[], None]]]:
    yield "kernels bound by memory", lambda: found.update(kernels=_kernels(rates, effort, dtypes))
    yield "rows", lambda: found["grids"].update(_rows(rates, effort, dtypes))
    yield "products", lambda: found["grids"].update(_matmuls(rates, effort, dtypes))
    most = {dtype: effort.most_flops[_text(dtype)] for dtype in dtypes}
    yield "attention", lambda: found["scatters"].update(attentions(rates, effort.spread, most))
    yield "convolution", lambda: found["scatters"].update(convolutions(rates, effort.spread, most))
    yield "odd sizes, steady load", lambda: found.update(factors=_factors(rates, effort, dtypes))
    yield "optimizer and host", lambda: _hosts(rates, effort, dtypes, found)


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
        "units": torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1,
        "launch_s": _short(asked_s),
        "reached": {**{name: _short(rate) for name, rate in reached.items()}, "copy": _short(copied)},
        "host_link": _host_link(device, clock, min(effort.copy_bytes, 1 << 28)),
        "grids": {},
        "scatters": {},
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
    wanted = [name for name in KERNELS if rates.device.type != "cpu" or name not in GPU_ONLY]
    for name, dtype in product(wanted, dtypes):
        more = (n for n in MORE.get(name, ()) if n < effort.numels[-1])
        for n in sorted((*effort.numels[: -1 if name in SLOW else None], *more)):
            for side, work, took_s in _kernel(rates, KERNELS[name], n, dtype):
                points = found.setdefault(f"{name}.{side}", {}).setdefault(_text(dtype), [])
                if work not in (known for known, _ in points):  # samples have a smallest size
                    points.append([work, _short(took_s)])
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
    def grids(layout: str) -> dict[str, Any]:
        sizes = effort.biased if layout == "bias" else effort.matmul
        most = {dtype: effort.most_flops[_text(dtype)] for dtype in dtypes}
        return {_text(dtype): _grid(*matmul_grid(rates, layout, dtype, sizes, most[dtype])) for dtype in dtypes}

    return {f"matmul.{layout}": grids(layout) for layout in LAYOUTS}


def _factors(rates: Rates, effort: Effort, dtypes: list[torch.dtype]) -> dict[str, Any]:
    size = effort.aligned_size
    odd = {_text(dtype): misaligned(rates, dtype, size) for dtype in dtypes}
    grouped: dict[str, Any] = {}
    for dtype in dtypes:
        try:
            rows = [[n, *grouped_factors(rates, dtype, n, size // 2)] for n in (size, 8 * size)]
        except (RuntimeError, NotImplementedError):
            continue
        grouped[_text(dtype)] = rows
    found = {"misaligned": _shortened(odd), "grouped": _shortened(grouped)}
    if rates.device.type == "cuda":
        found["channels_last"] = _shortened({_text(dtype): channels_last(rates, dtype) for dtype in dtypes})
        load = steady(rates, torch.bfloat16, effort.peak_size // 2, effort.copy_bytes // 8)
        found["steady"] = _shortened({"bfloat16": load})
    return found


def _shortened(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _shortened(value) for key, value in tree.items()}
    return [_shortened(value) for value in tree] if isinstance(tree, list) else _short(tree)


def _hosts(rates: Rates, effort: Effort, dtypes: list[torch.dtype], found: dict[str, Any]) -> None:
    """On a CPU the kernels' own figures hold the host's."""
    found["host"], found["pairs"] = {}, {}
    pace = Pace(rates.device) if isinstance(rates.clock, CudaClock) else None
    found["optimizers"] = optimizers(rates, effort.optimizer_bytes, dtypes, pace)
    if pace is None:
        return
    for dtype in dtypes:
        found["host"][_text(dtype)], in_a_step = eager_table(rates.device, dtype, pace)
        if dtype is torch.float32:
            scale_to_a_step(found["optimizers"], *in_a_step)
    found["pairs"]["float32"] = pair_table(rates.device, torch.float32, pace)
    found["pace_s"] = _short(pace.usual_s)
    one, clock = torch.ones(1, device=rates.device), rates.clock
    found["launch_s"] = _short(pace.usual_s * pace.paced(lambda: [clock.host_s(lambda: one + 1)])[0])


def _grid(axes: Axes, fractions: list[float]) -> dict[str, Any]:
    return {"axes": {name: list(sizes) for name, sizes in axes}, "fractions": fractions}


def _text(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _short(figure: float) -> float:
    return float(f"{figure:.4g}")
