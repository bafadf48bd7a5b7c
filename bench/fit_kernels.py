"""Fit the kernel tables that meshwright ships to measured products, attention and mixtures of experts.

    python bench/fit_kernels.py DIR --source TEXT    # gemm, attention, moe.csv -> meshwright/cluster/kernels/GPU.json
    python bench/fit_kernels.py DIR --holdout        # half of the shapes fitted, the other half scored

Every table is a roofline times a ratio that is read between sizes by kriging (`meshwright.cluster.scatter`). What is
fitted of a device and dtype: how far each size tells of others, and how much a single figure is to be believed, by the
likelihood of the figures (Adam, at most 400 of them). Of mixtures, which have few figures, both are drawn half-way to
what the larger tables of all devices say: it is the same work. Which tiles a library deals to processors is chosen so
too: those of `TILINGS` under which the figures of products are likeliest.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import re
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from meshwright.cluster.device_table import GPUS
from meshwright.cluster.kernel_table import (
    KERNELS,
    WIDTHS,
    Tile,
    attention_roof_s,
    in_waves,
    mixture_roof_s,
    product_roof_s,
    product_sizes,
)
from meshwright.cluster.profile_load import processors_of
from meshwright.cluster.scatter import _LEVEL, _REACH, _SLOPE, Scatter

DTYPES = {"bfloat16": "bfloat16", "fp8": "float8", "nvfp4": "float4", "fp8_block": "float8_block"}
MOST_FITTED = 400
LEAST_ROWS = 8
FEW, MANY_ROWS = "mixture", 40
"""The part whose tables have few rows, and how many are enough to learn from. Attention's were tried: no better."""
STEPS = 50
SQUARE: tuple[Tile, ...] = ((128, 128, 1.0),)
OBLONG: tuple[Tile, ...] = ((256, 128, 1.0), (128, 256, 1.0))
TILINGS: tuple[tuple[Tile, ...], ...] = ((), SQUARE, OBLONG, (*OBLONG, (128, 128, 1.1)))
"""None: products whose tiles wait for no wave. A square tile reads a third more for the same work."""
LEAST_GAIN = 12.0
"""By how much tiles have to raise the logarithm of the likelihood, or none are taken."""


@dataclass(frozen=True, slots=True)
class Sample:
    point: tuple[float, ...]
    roof_s: float
    seconds: float

    @property
    def ratio(self) -> float:
        return self.seconds / self.roof_s


Key = tuple[str, str, str]
"""GPU, part of the table, dtype."""


@dataclass(frozen=True, slots=True)
class Learned:
    """Weights of the sizes, the noise, the tiles, and by how much the figures are unlikely."""

    weights: list[float]
    noise: float
    tiles: tuple[Tile, ...] = ()
    unlikely: float = 0.0


def with_waves(samples: list[Sample], tiles: tuple[Tile, ...], gpu: str) -> list[Sample]:
    """Of products; samples as they are without tiles."""
    found = []
    for one in samples if tiles else ():
        m, n, k = one.point[:3]
        point = product_sizes(m, n, k, one.point[3] / 1e6, in_waves(m, n, tiles, processors_of(gpu)))
        found.append(replace(one, point=point))
    return found or samples


def rates(gpu: str, dtype: str) -> tuple[float, float, float]:
    device = GPUS[gpu].device
    return device.peak_flops(dtype.removesuffix("_block")), device.memory_bandwidth, WIDTHS[dtype]


def skew_of(distribution: str) -> float:
    return 0.0 if distribution == "balanced" else float(distribution.removeprefix("power_law_"))


def read(folder: Path) -> dict[Key, list[Sample]]:
    found: dict[Key, list[Sample]] = defaultdict(list)
    for row in rows(folder / "gemm.csv"):
        dtype = DTYPES[row["dtype"]]
        sizes = tuple(float(row[c]) for c in "mnk")
        roof_s = product_roof_s(*rates(row["gpu"], dtype), *sizes)
        point = product_sizes(*sizes, roof_s, 0.0)
        found[row["gpu"], "products", dtype].append(Sample(point, roof_s, float(row["time_us"]) * 1e-6))
    for row in rows(folder / "attention.csv"):
        dtype = DTYPES[row["kv_dtype"]]
        batch, seq, heads, kv, size, window = (
            float(row[c]) for c in ("batch", "seq", "heads", "kv_heads", "head_dim", "window")
        )
        peak, bandwidth, width = *rates(row["gpu"], "bfloat16")[:2], WIDTHS[dtype]
        roof_s = attention_roof_s(peak, bandwidth, width, batch * heads, seq, seq, size, heads / kv, window)
        narrowed = seq / window if 0 < window < seq else 1.0
        point = (batch * heads, seq, size, heads / kv, narrowed)
        found[row["gpu"], "attention", dtype].append(Sample(point, roof_s, float(row["time_us"]) * 1e-6))
    for row in rows(folder / "moe.csv"):
        dtype = DTYPES[row["dtype"]]
        tokens, hidden, ffn, topk, experts, tp, ep = (
            float(row[c]) for c in ("tokens", "hidden", "ffn", "topk", "experts", "tp", "ep")
        )
        sizes = (tokens, hidden, ffn / tp, topk, experts / ep, ep)
        skew = skew_of(row["distribution"])
        roof_s = mixture_roof_s(*rates(row["gpu"], dtype), *sizes, skew)
        point = (*sizes, 1.0 + skew)
        found[row["gpu"], "mixture", dtype].append(Sample(point, roof_s, float(row["time_us"]) * 1e-6))
    return {key: samples for key, samples in found.items() if len(samples) >= LEAST_ROWS}


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def learn(samples: list[Sample], seed: int = 0) -> Learned:
    """Weights of the sizes and the noise, by marginal likelihood under the covariance that `Scatter` has."""
    order = np.random.default_rng(seed).permutation(len(samples))[:MOST_FITTED]
    places = torch.tensor(np.log([samples[i].point for i in order]), dtype=torch.float64)
    values = torch.tensor(np.log([samples[i].ratio for i in order]), dtype=torch.float64)
    values = values - values.mean()
    spread = places.std(0)
    start = torch.where(spread > 1e-9, _REACH / (1.5 * spread.clamp(min=0.3)), torch.tensor(1e-3, dtype=torch.float64))
    weights = torch.log(start).requires_grad_()
    noise = torch.tensor(math.log(0.08), dtype=torch.float64, requires_grad=True)
    scale = torch.log(values.var() + 1e-6).requires_grad_()
    descent = torch.optim.Adam([weights, noise, scale], lr=0.12)
    for _ in range(STEPS):
        descent.zero_grad()
        scaled = (places - places.mean(0)) * torch.exp(weights)
        steps = scaled[:, None, :] - scaled[None, :, :]
        far = torch.sqrt(3 * steps.pow(2).sum(2) + 1e-12) / _REACH
        alike = (1 + far) * torch.exp(-far) + _LEVEL + _SLOPE * scaled @ scaled.T
        among = torch.exp(scale) * (alike + (torch.exp(noise) + 1e-4) * torch.eye(len(values), dtype=torch.float64))
        factor = torch.linalg.cholesky(among)
        solved = torch.cholesky_solve(values[:, None], factor)[:, 0]
        # a mild prior keeps sizes that hardly vary from telling points apart
        loss = (
            0.5 * values @ solved
            + torch.log(torch.diag(factor)).sum()
            + 0.5 * (weights - torch.log(start)).pow(2).sum()
        )
        loss.backward()  # type: ignore[no-untyped-call]
        descent.step()
    found = torch.exp(weights).detach().tolist()
    weighed, doubt = [_three(weight) for weight in found], _three(math.exp(float(noise.detach())) + 1e-4)
    return Learned(weighed, doubt, unlikely=float(loss.detach()))


def _three(value: float) -> float:
    return float(f"{value:.3g}")


def learn_products(samples: list[Sample], gpu: str) -> Learned:
    """With the tiles that the figures are likeliest under."""
    tilings = TILINGS if processors_of(gpu) else ((),)
    found = [replace(learn(with_waves(samples, tiles, gpu)), tiles=tiles) for tiles in tilings]
    best = min(found, key=lambda one: one.unlikely)
    return best if best.unlikely < found[0].unlikely - LEAST_GAIN else found[0]


def learn_all(found: dict[Key, list[Sample]]) -> dict[Key, Learned]:
    """Of each table; of those that have few figures, the geometric mean of its own and that of all larger tables."""
    own = {
        key: learn_products(samples, key[0]) if key[1] == "products" else learn(samples)
        for key, samples in found.items()
    }
    larger = [own[key] for key in own if key[1] == FEW and len(found[key]) >= MANY_ROWS]
    return {key: half_way(one, larger) if key[1] == FEW else one for key, one in own.items()}


def half_way(one: Learned, others: list[Learned]) -> Learned:
    if not others:
        return one
    logs, middle = (np.log([(*each.weights, each.noise) for each in some]) for some in ([one], others))
    *weights, noise = (_three(value) for value in np.exp((logs[0] + middle.mean(axis=0)) / 2))
    return Learned(weights, noise)


def fitted(samples: list[Sample], learned: Learned) -> dict[str, object]:
    return {
        "weights": learned.weights,
        "noise": learned.noise,
        **({"tiles": [list(tile) for tile in learned.tiles]} if learned.tiles else {}),
        "points": [[_short(size) for size in sample.point] for sample in samples],
        "ratios": [float(f"{sample.ratio:.3g}") for sample in samples],
    }


def _short(size: float) -> float | int:
    return int(size) if size == int(size) else float(f"{size:.4g}")


def write(found: dict[Key, list[Sample]], source: str) -> None:
    KERNELS.mkdir(exist_ok=True)
    learned = learn_all(found)
    for gpu in sorted({gpu for gpu, _, _ in found}):
        table: dict[str, object] = {"name": gpu, "source": source}
        for part in ("products", "attention", "mixture"):
            keys = [key for key in found if key[:2] == (gpu, part)]
            table[part] = {
                key[2]: fitted(with_waves(found[key], learned[key].tiles, gpu), learned[key]) for key in keys
            }
        text = json.dumps(table, indent=1)
        flat = re.sub(r"\[\s+([^\[\]]*?)\s+\]", lambda m: "[" + re.sub(r"\s+", " ", m[1]) + "]", text)
        (KERNELS / f"{gpu}.json").write_text(_wrapped(flat) + "\n", encoding="utf-8")
        print(gpu, "written")


def _wrapped(text: str) -> str:
    """Points of a table on one line."""
    return re.sub(
        r"\[\s+(\[[^\[\]]*\](?:,\s+\[[^\[\]]*\])*)\s+\]", lambda m: "[" + re.sub(r"\s+", " ", m[1]) + "]", text
    )


SUBSETS = {
    "products": {
        "all": lambda p: True,
        "m >= 2048, n and k >= 1024": lambda p: p[0] >= 2048 and min(p[1:3]) >= 1024,
        "n and k >= 2048": lambda p: min(p[1:3]) >= 2048,
    }
}


def holdout(found: dict[Key, list[Sample]], only: str) -> None:
    """Half of the samples are fitted and the others scored, then the other way round."""
    chosen = [key for key in found if only in " ".join(key)]
    found = {key: found[key] for key in found if key[1] in {part for _, part, _ in chosen}}
    order = {key: np.random.default_rng(1).permutation(len(samples)) for key, samples in found.items()}
    errors: dict[Key, list[tuple[tuple[float, ...], float]]] = defaultdict(list)
    for half in (0, 1):
        fitted_on = {key: [samples[i] for i in order[key][half::2]] for key, samples in found.items()}
        learned = learn_all(fitted_on)
        for key in chosen:
            one, gpu = learned[key], key[0]
            known, every = (with_waves(some, one.tiles, gpu) for some in (fitted_on[key], found[key]))
            ratios = {"forward": [s.ratio for s in known]}
            scatter = Scatter([s.point for s in known], ratios, one.weights, noise=one.noise)
            asked = [every[i] for i in order[key][1 - half :: 2]]
            errors[key] += [(s.point, abs(scatter("forward", *s.point) / s.ratio - 1)) for s in asked]
    pooled: dict[tuple[str, str], list[float]] = defaultdict(list)
    for gpu, part, dtype in chosen:
        pooled[gpu, part] += [error for _, error in errors[gpu, part, dtype]]
        for name, belongs in SUBSETS.get(part, {"all": lambda p: True}).items():
            some = [error for point, error in errors[gpu, part, dtype] if belongs(point)]
            print(
                f"{gpu:22}{part:10}{dtype:14}{name:28}rows {len(some):4}  median {np.median(some):6.1%}"
                f"  mean {np.mean(some):6.1%}",
                flush=True,
            )
    for (gpu, part), some in pooled.items():
        print(
            f"{gpu:22}{part:10}{'all dtypes':42}rows {len(some):4}  median {np.median(some):6.1%}"
            f"  mean {np.mean(some):6.1%}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--source", default="")
    parser.add_argument("--holdout", action="store_true")
    parser.add_argument("--only", default="", help="with --holdout: tables whose GPU, part and dtype contain this")
    args = parser.parse_args()
    torch.set_num_threads(1)
    found = read(args.folder)
    if args.holdout:
        holdout(found, args.only)
    else:
        write(found, args.source)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
