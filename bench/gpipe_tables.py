"""GPipe's tables by the simulator: the largest models that fit on K partitions, and throughput over K and M.

    python bench/gpipe_tables.py [--published FOLDER] [-o out/gpipe_tables.json]

A partition keeps its input for each micro-batch and computes its layers again before their backward, as GPipe does. One
device profile (`gpipe_layers.DEVICE`) prices all models; `Run` and SETTINGS hold what differs between the tables.
Beside each figure stands the published one, where the folder has the files `gpipe_table1_max_model_size.csv` and
`gpipe_tables2_3_throughput.csv`.

What agreement here is worth: the paper gives neither the sizes of Transformer-48 and -24 nor kernel rates nor batches
nor how layers were dealt to partitions, and what stands for them was chosen with the published rows in view
(docs/pipelines.md says what was tried). So this shows that one profile can account for the rows, not that they were
predicted.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from gpipe_layers import DEVICE, Layer, amoebanet, transformer, translator

from meshwright.planner.pipeline.balance import balanced_cuts
from meshwright.schedule import ORDERS, lists, pipeline
from meshwright.simulate import Costs, SegmentCost, Timeline, Transfer, simulate

GIB = 1 << 30
BYTES_PER_PARAMETER = 12  # the paper's: parameter, gradient and optimizer state, 4 bytes each


@dataclass(frozen=True)
class Link:
    bandwidth: float
    latency_s: float


UPDATED = 20  # bytes of a parameter's update: it, its gradient and state are read, it and the state written
BALANCED = 13  # samples at which AmoebaNet's partitions have equal bytes
FAST = Link(70e9, 2e-6)  # between TPU cores
SLOW = Link(6e9, 3e-5)  # through a host's memory, as on the paper's P100s without NVLink


@dataclass(frozen=True)
class Run:
    """What a table's rows share: bytes of a partition's device, and links between them. balanced_at: partitions have
    equal bytes at so many samples, whatever is faster. keeps_one: a lone micro-batch is not computed again."""

    memory: int
    link: Link = FAST
    balanced_at: int | None = None
    keeps_one: bool = False


def play(layers: Sequence[Layer], partitions: int, count: int, samples: int, run: Run, keep: bool = False) -> Timeline:
    """One step of `count` micro-batches of so many samples: partitions of equal time if they fit, else of equal memory.

    `keep`: nothing is computed again.
    """
    balances = [_bytes(layers, run.balanced_at or samples)]
    if run.balanced_at is None:
        seconds = [layer.seconds(samples) for layer in layers]
        balances.append([2 * forward_s + backward_s for forward_s, backward_s in seconds])
    found = [
        _play(layers, (0, *balanced_cuts(balance, partitions)), count, samples, run.link, keep) for balance in balances
    ]
    return min(found, key=lambda one: (max(run.memory, one.peak_bytes), one.step_s))


def _bytes(layers: Sequence[Layer], samples: int) -> list[float]:
    return [layer.parameters * BYTES_PER_PARAMETER + layer.kept_bytes * samples for layer in layers]


def _play(layers: Sequence[Layer], cuts: Sequence[int], count: int, samples: int, link: Link, keep: bool) -> Timeline:
    costs, transfers = [], {}
    for stage, (first, end) in enumerate(pairwise(cuts)):
        own = layers[first:end]
        costs.append(partition(own, layers[first - 1].leaves_bytes if first else 0.0, samples, keep))
        if end < len(layers):
            moved = samples * own[-1].leaves_bytes
            transfer = Transfer(moved / link.bandwidth, link.latency_s, int(moved), int(moved))
            transfers[stage, stage, stage + 1] = transfers[stage, stage + 1, stage] = transfer
    made = pipeline(range(1, len(costs) + 1), count)
    return simulate(lists(made, ORDERS["gpipe"](made)), Costs(costs, transfers, buffers=1), spans=False)


def partition(own: Sequence[Layer], enters_bytes: float, samples: int, keep: bool) -> SegmentCost:
    parameters = sum(layer.parameters for layer in own)
    forward_s, backward_s = map(sum, zip(*(layer.seconds(samples) for layer in own), strict=True))
    kept = int(samples * sum(layer.kept_bytes for layer in own))
    return SegmentCost(
        forward_s,
        backward_s + (0.0 if keep else forward_s),
        0.0,
        step_s=parameters * UPDATED / DEVICE.bandwidth,
        static_bytes=int(parameters * BYTES_PER_PARAMETER),
        resident_bytes=kept if keep else int(samples * enters_bytes),
        forward_transient_bytes=int(samples * max(layer.kept_bytes for layer in own)),
        backward_transient_bytes=0 if keep else kept,
    )


def largest(fits: Callable[[int], bool], step: int = 1) -> int:
    """The largest multiple of `step` that fits; what fits is smaller than what does not."""
    low, high = 0, 1
    while fits(high * step):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle * step) else (low, middle)
    return low * step


def table1() -> list[dict[str, Any]]:
    """Transformer: layers, 16 GiB, batch 32. AmoebaNet: filters for the paper's layers, 8 GiB, batch 128."""
    found = []
    for name, partitions in (("Naive-1", 1), *((f"Pipeline-{k}", k) for k in (1, 8, 32, 128))):
        keep = name == "Naive-1"
        samples = 32 if keep else 1

        def fits(count: int, partitions: int = partitions, samples: int = samples, keep: bool = keep) -> bool:
            made = transformer(count, 2048, 8192, 32)
            if len(made) < partitions:
                return True
            return play(made, partitions, 32 // samples, samples, Run(16 * GIB), keep).peak_bytes <= 16 * GIB

        size = largest(fits)
        parameters = sum(layer.parameters for layer in transformer(size, 2048, 8192, 32))
        found.append({"config": name, "model": "Transformer", "size": size, "parameters": parameters})
    for name, partitions, layers in (("Naive-1", 1, 18), ("Pipeline-1", 1, 18), ("Pipeline-2", 2, 18),
                                     ("Pipeline-4", 4, 36), ("Pipeline-8", 8, 72)):  # fmt: skip
        keep = name == "Naive-1"
        samples = 128 if keep else 1

        def room(
            filters: int, layers: int = layers, partitions: int = partitions, samples: int = samples, keep: bool = keep
        ) -> bool:
            made = amoebanet(layers, filters)
            run = Run(8 * GIB, FAST, BALANCED)
            return play(made, partitions, 128 // samples, samples, run, keep).peak_bytes <= run.memory

        size = largest(room, 8)
        parameters = sum(layer.parameters for layer in amoebanet(layers, size))
        found.append({"config": name, "model": f"AmoebaNet-{layers}", "size": size, "parameters": parameters})
    return found


def throughput(layers: Sequence[Layer], partitions: int, count: int, batch: int, run: Run) -> float:
    """Samples a second of the largest micro-batch that fits, 1, 2, 4 or a multiple of 8, of a batch of at most so many;
    0 if none does."""
    most = batch // count
    for samples in (*range(most // 8 * 8, 0, -8), 4, 2, 1):
        if samples > most:
            continue
        found = play(layers, partitions, count, samples, run, keep=run.keeps_one and count == 1)
        if found.peak_bytes <= run.memory:
            return samples * count / float(found.step_s)
    return 0.0


SETTINGS: dict[str, tuple[Callable[[], tuple[Layer, ...]], int, Run]] = {
    "Transformer-48": (lambda: translator(48, 1024, 4096, 16), 32, Run(16 * GIB)),
    "AmoebaNet-D(18,256)": (lambda: amoebanet(18, 256), 128, Run(8 * GIB, FAST, BALANCED, keeps_one=True)),
    "Transformer-24": (lambda: translator(24, 1024, 4096, 16), 32, Run(16 * GIB, SLOW)),
    "AmoebaNet-D(18,128)": (lambda: amoebanet(18, 128), 128, Run(16 * GIB, SLOW, BALANCED)),
}


def tables23() -> list[dict[str, Any]]:
    found = []
    for model, (make, batch, run) in SETTINGS.items():
        layers = make()
        counts = (1, 4, 32) if run.link is FAST else (32,)
        base = throughput(layers, 2, counts[0], batch, run)
        for count in counts:
            for partitions in (2, 4, 8):
                rate = throughput(layers, partitions, count, batch, run)
                found.append({"model": model, "K": partitions, "M": count, "normalised": rate / base})
    return found


def published(folder: Path) -> tuple[dict[tuple[str, str], float], dict[tuple[str, int, int], float]]:
    sizes, rates = {}, {}
    table = folder / "gpipe_table1_max_model_size.csv"
    if table.exists():
        for row in csv.DictReader(table.open()):
            units = {"M": 1e6, "B": 1e9}
            match = re.fullmatch(r"([\d.]+)([MB])", row["num_params"])
            assert match is not None
            sizes[row["model"].split("-")[0], row["config"]] = float(match[1]) * units[match[2]]
    table = folder / "gpipe_tables2_3_throughput.csv"
    if table.exists():
        for row in csv.DictReader(table.open()):
            key = (row["model"], int(row["K_partitions"]), int(row["M_microbatches"]))
            rates[key] = float(row["normalized_throughput"])
    return sizes, rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--published", default="published", type=Path, help="folder with the published tables")
    parser.add_argument("-o", "--output", default="out/gpipe_tables.json", type=Path)
    args = parser.parse_args()
    sizes, rates = published(args.published)
    first, second = table1(), tables23()
    base = {row["model"].split("-")[0]: row["parameters"] for row in first if row["config"] == "Pipeline-1"}
    print("largest models (parameters, and as a multiple of Pipeline-1)")
    for row in first:
        model = row["model"].split("-")[0]
        row["growth"] = row["parameters"] / base[model]
        line = f"  {row['model']:<14} {row['config']:<13} size {row['size']:>5} {row['parameters'] / 1e6:>9.0f}M"
        line += f" {row['growth']:8.2f}x"
        if (model, row["config"]) in sizes:
            row["published"] = sizes[model, row["config"]]
            row["published_growth"] = row["published"] / sizes[model, "Pipeline-1"]
            line += f"   published {row['published'] / 1e6:>8.0f}M {row['published_growth']:8.2f}x"
        print(line)
    print("normalised throughput")
    for row in second:
        key = (row["model"], row["K"], row["M"])
        line = f"  {row['model']:<20} K={row['K']} M={row['M']:<3} {row['normalised']:6.2f}"
        if key in rates:
            row["published"] = rates[key]
            row["error"] = row["normalised"] / rates[key] - 1
            line += f"   published {rates[key]:5.2f} {row['error']:+6.1%}"
        print(line)
    for model in sorted({row["model"] for row in second if "published" in row}):
        rows = [row for row in second if row["model"] == model]
        near = sum(abs(row["error"]) <= 0.15 for row in rows)
        pairs = [(a, b) for a in rows for b in rows if a["published"] < b["published"]]
        agree = sum(a["normalised"] < b["normalised"] for a, b in pairs)
        print(f"  {model:<20} {near} of {len(rows)} within 15 %; {agree} of {len(pairs)} pairs in the published order")
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(json.dumps({"largest": first, "throughput": second}, indent=1) + "\n")


if __name__ == "__main__":
    main()
