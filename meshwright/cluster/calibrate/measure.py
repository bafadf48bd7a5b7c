"""Calibration: measure the device at hand and write down what pricing needs to know of it."""

from __future__ import annotations

import os
import time
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
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
    short,
    text_of,
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


def efforts() -> dict[str, Effort]:
    """By the kind of device."""
    text = Path(__file__).with_name("efforts.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), dict[str, Effort])


def calibrate(
    device: torch.device, nominal: dict[str, Any] | None = None, progress: Progress = lambda text: None
) -> dict[str, Any]:
    """A device profile as JSON has it. `nominal`: name, peaks and memory bandwidth where they are known."""
    start = time.perf_counter()
    effort, clock = efforts()[device.type], clock_for(device)
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
    most = {dtype: effort.most_flops[text_of(dtype)] for dtype in dtypes}
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
        "peaks": dict(known.get("peaks") or {name: short(rate) for name, rate in reached.items()}),
        "memory_bytes": known.get("memory_bytes") or _memory_bytes(device),
        "reserve_bytes": known.get("reserve_bytes") or (3 << 29 if device.type == "cuda" else 1 << 29),
        "memory_bandwidth": short(bandwidth),
        "units": torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1,
        "launch_s": short(asked_s),
        "reached": {**{name: short(rate) for name, rate in reached.items()}, "copy": short(copied)},
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
        "to_device": short(n_bytes / clock.device_s(lambda: there.copy_(here, non_blocking=True))),
        "from_device": short(n_bytes / clock.device_s(lambda: here.copy_(there, non_blocking=True))),
    }


def _kernels(rates: Rates, effort: Effort, dtypes: list[torch.dtype]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    wanted = [name for name in KERNELS if rates.device.type != "cpu" or name not in GPU_ONLY]
    for name, dtype in product(wanted, dtypes):
        more = (n for n in MORE.get(name, ()) if n < effort.numels[-1])
        for n in sorted((*effort.numels[: -1 if name in SLOW else None], *more)):
            for side, work, took_s in _kernel(rates, KERNELS[name], n, dtype):
                points = found.setdefault(f"{name}.{side}", {}).setdefault(text_of(dtype), [])
                if work not in (known for known, _ in points):  # samples have a smallest size
                    points.append([work, short(took_s)])
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
                found.setdefault(f"{kernel}.{side}", {})[text_of(dtype)] = _grid(effort.rows, fractions)
    return found


def _matmuls(rates: Rates, effort: Effort, dtypes: list[torch.dtype]) -> dict[str, Any]:
    def grids(layout: str) -> dict[str, Any]:
        sizes = effort.biased if layout == "bias" else effort.matmul
        most = {dtype: effort.most_flops[text_of(dtype)] for dtype in dtypes}
        return {text_of(dtype): _grid(*matmul_grid(rates, layout, dtype, sizes, most[dtype])) for dtype in dtypes}

    return {f"matmul.{layout}": grids(layout) for layout in LAYOUTS}


def _factors(rates: Rates, effort: Effort, dtypes: list[torch.dtype]) -> dict[str, Any]:
    size = effort.aligned_size
    odd = {text_of(dtype): misaligned(rates, dtype, size) for dtype in dtypes}
    grouped: dict[str, Any] = {}
    for dtype in dtypes:
        try:
            rows = [[n, *grouped_factors(rates, dtype, n, size // 2)] for n in (size, 8 * size)]
        except (RuntimeError, NotImplementedError):
            continue
        grouped[text_of(dtype)] = rows
    found = {"misaligned": _shortened(odd), "grouped": _shortened(grouped)}
    if rates.device.type == "cuda":
        found["channels_last"] = _shortened({text_of(dtype): channels_last(rates, dtype) for dtype in dtypes})
        load = steady(rates, torch.bfloat16, effort.peak_size // 2, effort.copy_bytes // 8)
        found["steady"] = _shortened({"bfloat16": load})
    return found


def _shortened(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _shortened(value) for key, value in tree.items()}
    return [_shortened(value) for value in tree] if isinstance(tree, list) else short(tree)


def _hosts(rates: Rates, effort: Effort, dtypes: list[torch.dtype], found: dict[str, Any]) -> None:
    """On a CPU the kernels' own figures hold the host's."""
    found["host"], found["pairs"] = {}, {}
    pace = Pace(rates.device) if isinstance(rates.clock, CudaClock) else None
    found["optimizers"] = optimizers(rates, effort.optimizer_bytes, dtypes, pace)
    if pace is None:
        return
    for dtype in dtypes:
        found["host"][text_of(dtype)], in_a_step = eager_table(rates.device, dtype, pace)
        if dtype is torch.float32:
            scale_to_a_step(found["optimizers"], *in_a_step)
    found["pairs"]["float32"] = pair_table(rates.device, torch.float32, pace)
    found["pace_s"] = short(pace.usual_s)
    one, clock = torch.ones(1, device=rates.device), rates.clock
    found["launch_s"] = short(pace.usual_s * pace.paced(lambda: [clock.host_s(lambda: one + 1)])[0])


def _grid(axes: Axes, fractions: list[float]) -> dict[str, Any]:
    return {"axes": {name: list(sizes) for name, sizes in axes}, "fractions": fractions}
