"""Fit the measured links that meshwright ships to tables of nccl-tests (`gpu, op, num_gpus, bytes, dtype, time_us`).

    python bench/fit_collectives.py collectives.csv --source TEXT            # writes meshwright/cluster/links/GPU.json
    python bench/fit_collectives.py collectives.csv --holdout                # half of the sizes fitted, others scored
    python bench/fit_collectives.py sailor_layer_times.csv --layers          # of links that no nccl-tests show

A curve (GPU, kind, group size) is fitted by at most four lines, the least of which is the price: the concave rising
function with the least sum of relative errors (a linear programme over the measured sizes), then the four of its
pieces that keep most of it. Links are fitted, never rows: eight numbers stand for up to 42 measurements.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

import highspy
import numpy as np

from meshwright.cluster.collective_table import LINKS, Line

LINES = 4
SUMS = ("all_reduce", "reduce_scatter")
"""Kinds that add: sums of int8 take 3 to 10 % longer than those of half precision, and training has none."""
LARGE_BYTES = 1 << 20
SAMPLES = 5
NOMINAL = {
    "A100-SXM-80GB": 300e9,
    "H100-SXM-80GB": 450e9,
    "H200-SXM-141GB": 450e9,
    "B200-SXM": 900e9,
    "GB200": 900e9,
    "RTX-PRO-6000-Server": 64e9,
}

Curve = tuple[str, str, int]
Point = tuple[int, float]


def read(path: Path) -> dict[Curve, list[Point]]:
    found: dict[Curve, list[Point]] = defaultdict(list)
    with path.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["op"] in SUMS and row["dtype"] != "half":
                continue
            curve = (row["gpu"], row["op"], int(row["num_gpus"]))
            found[curve].append((int(row["bytes"]), float(row["time_us"]) * 1e-6))
    return found


def fit(points: list[Point]) -> list[Line]:
    """At most LINES lines; seconds are their minimum."""
    at: dict[int, list[float]] = defaultdict(list)
    for n_bytes, seconds in points:
        at[n_bytes].append(seconds)
    sizes = sorted(at)
    values = _concave(sizes, at)
    pieces = zip(sizes, sizes[1:], values, values[1:], strict=False)
    slopes = [((high - low) / (b - a), low - (high - low) / (b - a) * a) for a, b, low, high in pieces]
    lines = list(dict.fromkeys(slopes))
    between = [size * 2**i for size, next_size in pairwise(sizes) for i in range(1, 30) if size * 2**i < next_size]
    kept = points + [(size, _seconds(lines, size)) for size in between]  # a piece without samples inside counts too
    while len(lines) > LINES:
        lines = min((lines[:i] + lines[i + 1 :] for i in range(len(lines))), key=lambda some: _loss(some, kept))
    return lines + lines[-1:] * (LINES - len(lines))


def _concave(sizes: list[int], at: dict[int, list[float]]) -> list[float]:
    """Values at the sizes, in microseconds inside: rising, with falling slopes, nearest to the measured ones."""
    model = highspy.Highs()
    model.silent()
    values = [model.addVariable(lb=0.1) for _ in sizes]
    total = 0
    for value, size in zip(values, sizes, strict=True):
        for seconds in at[size]:
            error = model.addVariable(lb=0)
            model.addConstr(error >= value * (1e-6 / seconds) - 1)
            model.addConstr(error >= 1 - value * (1e-6 / seconds))
            total = total + error
    for low, high in pairwise(values):
        model.addConstr(high >= low)
    for i in range(len(sizes) - 2):
        first, second = sizes[i + 1] - sizes[i], sizes[i + 2] - sizes[i + 1]
        model.addConstr((values[i + 1] - values[i]) * (1e6 / first) >= (values[i + 2] - values[i + 1]) * (1e6 / second))
    model.minimize(total)
    return [float(model.val(value)) * 1e-6 for value in values]


def _loss(lines: list[Line], points: Iterable[Point]) -> float:
    return sum(abs(float(np.log(_seconds(lines, n_bytes) / seconds))) for n_bytes, seconds in points)


def _seconds(lines: list[Line], n_bytes: int) -> float:
    return min(s_per_byte * n_bytes + fixed_s for s_per_byte, fixed_s in lines)


def write(curves: dict[Curve, list[Point]], source: str) -> None:
    for gpu in sorted({gpu for gpu, _, _ in curves}):
        lines: dict[str, dict[str, list[list[float]]]] = defaultdict(dict)
        samples: dict[str, dict[str, list[list[float]]]] = defaultdict(dict)
        for (_, kind, size), points in sorted((c, p) for c, p in curves.items() if c[0] == gpu):
            lines[kind][str(size)] = [[float(f"{x:.4g}") for x in line] for line in fit(points)]
            samples[kind][str(size)] = _samples(points)
        _save(gpu, {"bandwidth": NOMINAL[gpu], "source": source, "lines": lines, "samples": samples})
    derive()


def _samples(points: list[Point]) -> list[list[float]]:
    """Some of the measured sizes, evenly spread, to be shown beside the fit."""
    means = {size: median(s for b, s in points if b == size) for size in {b for b, _ in points}}
    sizes = sorted(means)
    chosen = sorted({sizes[round(i * (len(sizes) - 1) / (SAMPLES - 1))] for i in range(SAMPLES)})
    return [[size, float(f"{means[size]:.4g}")] for size in chosen]


def _flat(text: str) -> str:
    """JSON with one curve a line."""
    curve = r"\[\s+(\[[^\]]*\](?:,\s+\[[^\]]*\])*)\s+\]"
    return re.sub(curve, lambda m: "[" + re.sub(r"\s+", " ", m[1]).replace("[ ", "[").replace(" ]", "]") + "]", text)


@dataclass(frozen=True, slots=True)
class Derived:
    """A link of which others published rates alone: latencies are those of the nearest measured one.

    rates: bytes per second by group size. per_byte: how many bytes of the tensor a second of that rate moves, by kind.
    """

    like: str
    bandwidth: float
    rates: dict[str, dict[int, float]]
    source: str


def _gathers(rates: dict[int, float]) -> dict[str, dict[int, float]]:
    """Mist's model: a gather takes bytes / rate, a scatter 1.1 of it, an all-reduce 2.1."""
    slower = {"all_gather": 1.0, "reduce_scatter": 1.1, "all_reduce": 2.1, "all_to_all": 1.0}
    return {kind: {n: rate / factor for n, rate in rates.items()} for kind, factor in slower.items()}


def _bus(rates: dict[str, dict[int, float]]) -> dict[str, dict[int, float]]:
    """From bus bandwidths to bytes of the tensor per second."""
    return {
        kind: {n: rate * n / (n - 1) / (2 if kind == "all_reduce" else 1) for n, rate in by.items()}
        for kind, by in rates.items()
    }


_KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
_MIST = "Dazz993/Mist@d69e530acb62 benchmark/mist/configs/experiment: rates; latencies of the nearest measured link"
_SAILOR = "eth-easl/sailor@cf2c8e3 intra_node_bandwidths.json: rates; latencies of the nearest measured link"
DERIVED = {
    "V100-SXM2-16GB": Derived(
        "A100-SXM-80GB", 150e9, _gathers({2: 57.361e9, 4: 46.608e9, 8: 119.5433e9}), f"{_MIST} (A100)"
    ),
    "V100-SXM2-32GB": Derived(
        "A100-SXM-80GB", 150e9, _gathers({2: 15.6803e9, 4: 40.2922e9, 8: 50.6314e9}), f"{_MIST} (A100)"
    ),
    "L4": Derived("RTX-PRO-6000-Server", 32e9, _gathers({2: 2.964e9, 4: 4.1635e9, 8: 4.6832e9}), f"{_MIST} (RTX PRO)"),
    "GH200-96GB": Derived(
        "H100-SXM-80GB", 450e9, _bus({kind: {2: 125.5e9, 4: 250.6e9} for kind in _KINDS}), f"{_SAILOR} (H100)"
    ),
    "A100-PCIe-80GB": Derived(
        "RTX-PRO-6000-Server",
        30e9,
        _bus(
            {
                "all_reduce": {2: 20.9e9, 4: 20.77e9},
                "all_gather": {2: 20.6e9, 4: 20.75e9},
                "reduce_scatter": {2: 19.26e9, 4: 20.54e9},
                "all_to_all": {2: 20.91e9, 4: 19.14e9},
            }
        ),
        "MooreThreads/SimuMax@3005b17 configs/system/a100_pcie.json: rates; latencies of the nearest measured link "
        "(RTX PRO)",
    ),
}


def derive() -> None:
    for name, link in DERIVED.items():
        base = json.loads((LINKS / f"{link.like}.json").read_text(encoding="utf-8"))["lines"]
        lines: dict[str, dict[str, list[list[float]]]] = {}
        for kind, rates in link.rates.items():
            lines[kind] = {}
            for n, rate in rates.items():
                near = base[kind][str(n)]
                slower = 1 / rate / min(s_per_byte for s_per_byte, _ in near)
                lines[kind][str(n)] = [[float(f"{s_per_byte * slower:.4g}"), fixed_s] for s_per_byte, fixed_s in near]
        _save(name, {"bandwidth": link.bandwidth, "source": link.source, "lines": lines, "samples": {}})


@dataclass(frozen=True, slots=True)
class Embedded:
    """A link of which others published times of an embedding whose vocabulary is split: a lookup and an all-reduce.

    gpu: its name there. Smaller messages take what those of the nearest measured link do, times the ratio of rates.
    """

    gpu: str
    bandwidth: float
    like: str = "RTX-PRO-6000-Server"


EMBEDDED = {
    "RTX-3090": Embedded("RTX-3090", 32e9),
    "Titan-RTX": Embedded("Titan-RTX", 16e9),
    "RTX-2080-Ti": Embedded("RTX-2080", 16e9),
}
EMBEDDED_MODEL, TOKEN_BYTES, SAMPLE_TOKENS = "OPT-350", 1024 * 4, 2048
SMALL_BYTES = [1 << power for power in range(10, 21)]


def embedded(path: Path) -> dict[tuple[str, int], list[Point]]:
    """All-reduces by GPU and group size: an embedding's time on several devices less its time on one."""
    times: dict[tuple[str, int], dict[int, float]] = defaultdict(dict)
    with path.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["model"] == EMBEDDED_MODEL and row["part"] == "embedding":
                times[row["gpu"], int(row["tp"])][int(row["micro_batch"])] = float(row["fwd_ms"]) * 1e-3
    found = {}
    for (gpu, size), by_samples in times.items():
        alone = times[gpu, 1]
        most = max(alone, default=0)
        found[gpu, size] = [
            (n * SAMPLE_TOKENS * TOKEN_BYTES, seconds - alone.get(n, n / most * alone[most]))
            for n, seconds in by_samples.items()
            if size > 1
        ]
    return found


def write_embedded(path: Path) -> None:
    """Gathers and exchanges move half of an all-reduce's bytes."""
    points = embedded(path)
    for name, link in EMBEDDED.items():
        base = json.loads((LINKS / f"{link.like}.json").read_text(encoding="utf-8"))["lines"]
        lines: dict[str, dict[str, list[list[float]]]] = {kind: {} for kind in sorted(_KINDS)}
        for n in (2, 4, 8):
            large = points[link.gpu, n]
            rate = median(n_bytes / seconds for n_bytes, seconds in large)
            for kind in lines:
                near, moved = base[kind][str(n)], 1.0 if kind == "all_reduce" else 0.5
                slower = moved / rate / min(s_per_byte for s_per_byte, _ in near)
                scaled = [(s_per_byte * slower, fixed_s) for s_per_byte, fixed_s in near]
                if kind == "all_reduce":
                    scaled = fit([*large, *((n_bytes, _seconds(scaled, n_bytes)) for n_bytes in SMALL_BYTES)])
                lines[kind][str(n)] = [[float(f"{x:.4g}") for x in line] for line in scaled]
        source = (
            "eth-easl/sailor@cf2c8e3 profiles_tmp.json: all-reduces of 8 to 512 MB after an embedding, others at half "
            "their time; below 8 MB as on the nearest measured link (RTX PRO)"
        )
        _save(name, {"bandwidth": link.bandwidth, "source": source, "lines": lines, "samples": {}})


def _save(name: str, table: dict[str, object]) -> None:
    (LINKS / f"{name}.json").write_text(_flat(json.dumps(table, indent=1)) + "\n", encoding="utf-8")


def holdout(curves: dict[Curve, list[Point]]) -> None:
    """Every other size of each curve is fitted, the rest scored; then the other way round."""
    for part in (0, 1):
        errors: dict[str, list[float]] = defaultdict(list)
        large: dict[str, list[float]] = defaultdict(list)
        for (gpu, _, _), points in curves.items():
            sizes = sorted({size for size, _ in points})
            fitted = set(sizes[part::2])
            lines = fit([point for point in points if point[0] in fitted])
            for size, seconds in points:
                if size not in fitted:
                    error = abs(_seconds(lines, size) / seconds - 1)
                    errors[gpu].append(error)
                    large[gpu] += [error] if size >= LARGE_BYTES else []
        for gpu, found in errors.items():
            print(
                f"half {part} {gpu:20} rows {len(found):4}  median {median(found):6.1%}  mean {np.mean(found):6.1%}"
                f"  from 1 MiB on: median {median(large[gpu]):6.1%}"
            )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("--source", default="nccl-tests")
    parser.add_argument("--holdout", action="store_true")
    parser.add_argument("--layers", action="store_true")
    args = parser.parse_args()
    if args.layers:
        write_embedded(args.table)
        return 0
    curves = read(args.table)
    if args.holdout:
        holdout(curves)
    else:
        write(curves, args.source)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
