"""Device types of the presets, every figure with its source. A figure without one says "assumption"."""

from __future__ import annotations

import os
from dataclasses import dataclass

from meshwright.cluster.device import Achievable, Device

_ML_ENG = "stas00/ml-engineering@744d01e18b79 compute/accelerator/README.md; torchtitan get_peak_flops agrees"
_MATMUL = "stas00/ml-engineering@744d01e18b79: measured bf16 matmul against peak"
_MLPERF = "mlcommons/training_results_v4.0@62f111b7690f, NVIDIA system description"
_AWS_P3 = "AWS announcement of EC2 P3, 2017: 125 TFLOPS mixed, 15.7 TFLOPS single, 16 GiB"
_H200 = "measured on an H200, torch 2.11"
_LOCAL = "measured on a 2-core Xeon machine, one thread, torch 2.13"
_ASSUMED = "assumption"

_MIB = 1 << 20
_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class SourcedDevice:
    """A device and, per field, where its figure comes from."""

    device: Device
    sources: tuple[tuple[str, str], ...]


def _gpu(
    name: str,
    peaks: dict[str, float],
    memory: tuple[int, str],
    memory_bandwidth: tuple[float, str],
    matmul: tuple[float, str],
    peak_source: str = _ML_ENG,
) -> SourcedDevice:
    fastest = max(rate for dtype, rate in peaks.items() if dtype != "float8")
    device = Device(
        name,
        "cuda",
        tuple(peaks.items()),
        memory[0],
        memory_bandwidth[0],
        launch_s=8.5e-6,
        reserve_bytes=3 * _GIB // 2,
        # An op that would take 2 us at peak reaches half of what a large one does.
        achievable=(Achievable("matmul", matmul[0], fastest * 2e-6), Achievable("memory", 0.88)),
    )
    measured_here = _H200 if name.startswith("H200") else f"{_ASSUMED}: as {_H200}"
    return SourcedDevice(
        device,
        (
            ("peaks", peak_source),
            ("memory_bytes", memory[1]),
            ("memory_bandwidth", memory_bandwidth[1]),
            ("launch_s", f"{measured_here}: eager adds of one element, one after the other"),
            ("reserve_bytes", f"{measured_here}: context 527 MiB; 1 GiB for communicators (assumption)"),
            ("achievable.matmul", matmul[1]),
            ("achievable.matmul.half_work", f"{measured_here}: bf16 matmul of 2048 against 16384"),
            ("achievable.memory", f"{measured_here}: copy of 1 GiB"),
        ),
    )


_HOPPER_PEAKS = {
    "float8": 1979e12,
    "bfloat16": 989e12,
    "float16": 989e12,
    "tf32": 494.5e12,
    "float32": 67e12,
}

GPUS: dict[str, SourcedDevice] = {
    entry.device.name: entry
    for entry in (
        _gpu(
            "V100-SXM2-16GB",
            {"float16": 125e12, "float32": 15.7e12},
            (16 * _GIB, _AWS_P3),
            (900e9, "NVIDIA at GTC 2017: Tesla V100, 16 GB HBM2 at 900 GB/s"),
            (0.8, f"{_ASSUMED}: as its successors"),
            _AWS_P3,
        ),
        _gpu(
            "A100-SXM-80GB",
            {"bfloat16": 312e12, "float16": 312e12, "tf32": 156e12, "float32": 19.5e12},
            (80 * 10**9, _ML_ENG),
            (2.0e12, _ML_ENG),
            (0.869, _MATMUL),
        ),
        _gpu("H100-SXM-80GB", _HOPPER_PEAKS, (81559 * _MIB, _MLPERF), (3.35e12, _ML_ENG), (0.803, _MATMUL)),
        _gpu(
            "H200-SXM-141GB",
            _HOPPER_PEAKS,
            (143771 * _MIB, _MLPERF),
            (4.8e12, _ML_ENG),
            (0.803, f"{_MATMUL} (the row says: H200 as H100); 0.77 to 0.82 {_H200}"),
        ),
        _gpu(
            "B200-SXM",
            {"float8": 4500e12, "bfloat16": 2250e12, "float16": 2250e12, "tf32": 1125e12, "float32": 80e12},
            (180 * 10**9, _ML_ENG),
            (8.0e12, _ML_ENG),
            (0.776, _MATMUL),
        ),
        _gpu(
            "GB200",
            {"float8": 5000e12, "bfloat16": 2500e12, "float16": 2500e12, "tf32": 1250e12, "float32": 80e12},
            (186 * 10**9, _ML_ENG),
            (8.0e12, _ML_ENG),
            (0.729, _MATMUL),
        ),
    )
}


def local_cpu(processes: int) -> SourcedDevice:
    """One of `processes` CPU processes on this machine, with its share of the machine's memory."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // processes
    device = Device(
        "cpu",
        "cpu",
        (("bfloat16", 8.3e11), ("float32", 1.45e11), ("float64", 7e10)),
        memory_bytes,
        memory_bandwidth=8e9,
        launch_s=5e-6,
        reserve_bytes=min(_GIB // 2, memory_bytes // 4),
        achievable=(Achievable("matmul", 1.0, 1e6), Achievable("memory", 1.0)),
    )
    return SourcedDevice(
        device,
        (
            ("peaks", f"{_LOCAL}: matmul of 512"),
            ("memory_bytes", "this machine's memory over the number of processes"),
            ("memory_bandwidth", f"{_LOCAL}: copy of 32 MiB"),
            ("launch_s", f"{_LOCAL}: add of one element"),
            ("reserve_bytes", f"{_ASSUMED}: interpreter and torch"),
            ("achievable.matmul", f"{_LOCAL}: peaks are measured, so all of them"),
            ("achievable.matmul.half_work", f"{_LOCAL}: matmul of 64 against 512"),
            ("achievable.memory", f"{_LOCAL}: the bandwidth is measured, so all of it"),
        ),
    )
