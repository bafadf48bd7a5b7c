"""How far off are prices of a GPU, or of a group size, that nobody measured? Each is left out and read from others.

    python bench/left_out.py DIR          # gemm.csv, attention.csv, moe.csv and collectives.csv

A GPU's kernels are priced by the table of a relative, at the GPU's own rates, as devices without a table are. So are
its collectives, by the relative's table. Groups of 4 and of 8 devices are read from the other sizes of the same table.
Errors are relative to the measured time: median and mean of their absolute values, and their mean.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory

from fit_kernels import Key, Sample, read, rows

from meshwright.cluster import collective_table
from meshwright.cluster.device_table import GPUS
from meshwright.cluster.kernel_table import (
    WIDTHS,
    KernelTable,
    in_waves,
    kernel_table,
    product_roof_s,
    product_sizes,
)
from meshwright.cluster.profile_load import processors_of

RELATIVES = (
    ("H200-SXM-141GB", "H100-SXM-80GB"),
    ("H100-SXM-80GB", "H200-SXM-141GB"),
    ("GB200", "B200-SXM"),
    ("B200-SXM", "GB200"),
    ("B200-SXM", "H100-SXM-80GB"),
    ("A100-SXM-80GB", "H100-SXM-80GB"),
)


def by_relative(key: Key, samples: list[Sample], there: KernelTable) -> Iterator[float]:
    """Errors of a table's samples under the ratios of another one; the roof's microseconds are the relative's."""
    _, part, dtype = key
    ratio = getattr(there, part).get(dtype)
    device = GPUS[there.name].device
    peak, bandwidth = device.peak_flops(dtype.removesuffix("_block")), device.memory_bandwidth
    for sample in samples if ratio else ():
        point = sample.point
        if part == "products":
            m, n, k = point[:3]
            roof_s = product_roof_s(peak, bandwidth, WIDTHS[dtype], m, n, k)
            processors = processors_of(key[0]) or processors_of(there.name)
            waves = in_waves(m, n, there.tiles_of(dtype), processors)
            point = product_sizes(m, n, k, roof_s, waves)
        yield ratio("forward", *point) / sample.ratio - 1


def collective_errors(measured: list[dict[str, str]], table: str, slower: float = 1.0) -> Iterator[float]:
    for row in measured:
        lines = collective_table.measured_lines(table, row["op"], int(row["num_gpus"]))
        priced_s = min(fixed_s + slower * s_per_byte * float(row["bytes"]) for s_per_byte, fixed_s in lines)
        yield priced_s / (float(row["time_us"]) * 1e-6) - 1


def without_size(name: str, size: int, folder: Path) -> str:
    """A copy of a table that lacks a group size, under another name."""
    table = collective_table.link_table(name)
    lines = {kind: {n: each for n, each in by.items() if int(n) != size} for kind, by in table["lines"].items()}
    found = f"{name}-without-{size}"
    (folder / f"{found}.json").write_text(json.dumps(table | {"lines": lines}), encoding="utf-8")
    return found


def line(words: str, errors: Iterable[float]) -> None:
    found = list(errors)
    if found:
        sizes = [abs(error) for error in found]
        figures = f"median {median(sizes):6.1%}  mean {fmean(sizes):6.1%}  bias {fmean(found):+7.1%}"
        print(f"{words:<75} rows {len(found):4}  {figures}", flush=True)


def kernels(folder: Path) -> None:
    found = read(folder)
    for gpu, relative in RELATIVES:
        for key, samples in found.items():
            if key[0] == gpu:
                there = kernel_table(relative)
                line(f"{' '.join(key)} by {relative}", by_relative(key, samples, there))
                large = [one for one in samples if one.point[0] >= 2048 and min(one.point[1:3]) >= 1024]
                if key[1] == "products":
                    line(f"{' '.join(key)} by {relative}, m >= 2048, n and k >= 1024", by_relative(key, large, there))


def collectives(path: Path) -> None:
    measured = [row for row in rows(path) if row["dtype"] == "half"]
    large = [row for row in measured if int(row["bytes"]) >= 1 << 20]
    for gpu, relative in RELATIVES:
        slower, other = (collective_table.link_table(name)["bandwidth"] for name in (relative, gpu))
        for words, some in (("all sizes", measured), ("from 1 MiB on", large)):
            own = [row for row in some if row["gpu"] == gpu]
            line(f"{gpu} collectives by {relative}, {words}", collective_errors(own, relative, slower / other))
    with TemporaryDirectory() as folder:
        for gpu, size in product(sorted({row["gpu"] for row in measured}), (4, 8)):
            own = [row for row in large if row["gpu"] == gpu and int(row["num_gpus"]) == size]
            if len(collective_table.link_table(gpu)["lines"]["all_reduce"]) > 2:
                table = without_size(gpu, size, Path(folder))
                kept, collective_table.LINKS = collective_table.LINKS, Path(folder)
                line(f"{gpu} among {size} by other sizes, from 1 MiB on", collective_errors(own, table))
                collective_table.LINKS = kept


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    kernels(args.folder)
    collectives(args.folder / "collectives.csv")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
