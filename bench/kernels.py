"""How well does meshwright price single kernels and collectives? Scores tables of measurements, row by row.

    python bench/kernels.py TABLE.csv [TABLE.csv ...] [--json FILE]

What a table holds is told by its columns:

    collectives   gpu, op, num_gpus, bytes, dtype, time_us             one collective inside one host
    gemm          gpu, dtype, m, n, k, time_us                         y[m, n] = x[m, k] w[n, k]^T
    attention     gpu, kv_dtype, batch, seq, heads, kv_heads, head_dim, window, time_us       causal, forward
    moe           gpu, dtype, tokens, hidden, ffn, topk, experts, tp, ep, distribution, time_us     one rank, forward

Every price comes from the functions that planning calls: `collective_s` of the device's host,
`DeviceProfile.matmul_s`, `attention_s` and `mixture_s`. On an H200 planning uses what calibration measured of
PyTorch's own kernels; here the tables of inference libraries are asked there too (`profile_of(library=True)`). Rows
that cannot be priced are listed with the reason, the rest are scored: `groups` by GPU, op and dtype (`GPU/op/dtype`)
with `rows`, `median_abs_error`, `mean_abs_error` and `bias` (errors relative to the measured time), `subsets` likewise
over the ranges that targets are stated for, `skipped` with a reason for every row that was left out.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import fmean, median

sys.path.insert(0, str(Path(__file__).parent))

import gpu_names
from row_tables import WRONG, Refused, Row, check_written, positive_number, read_table, whole_number

from meshwright.cluster import collective_s
from meshwright.cluster.cost import KINDS
from meshwright.cluster.device_profile import DeviceProfile
from meshwright.cluster.device_table import GPUS
from meshwright.cluster.hosts import ALIASES, HOSTS
from meshwright.cluster.mesh import Axis
from meshwright.cluster.presets import devices_of
from meshwright.cluster.profile_load import profile_of
from meshwright.errors import MeshwrightError

COLUMNS = {
    "collectives": ("gpu", "op", "num_gpus", "bytes", "time_us"),
    "attention": ("gpu", "batch", "seq", "heads", "kv_heads", "head_dim", "time_us"),
    "moe": ("gpu", "tokens", "hidden", "ffn", "topk", "experts", "time_us"),
    "gemm": ("gpu", "m", "n", "k", "time_us"),
}
TOLD_BY = {"collectives": "num_gpus", "attention": "head_dim", "moe": "experts", "gemm": "m"}
OPTIONAL = {
    "dtype": "bfloat16",
    "kv_dtype": "bfloat16",
    "window": "0",
    "tp": "1",
    "ep": "1",
    "distribution": "balanced",
}
DTYPES = {
    **dict.fromkeys(("bfloat16", "bf16"), "bfloat16"),
    **dict.fromkeys(("half", "float16", "fp16"), "float16"),
    **dict.fromkeys(("fp8", "float8"), "float8"),
    **dict.fromkeys(("nvfp4", "fp4", "float4"), "float4"),
    "fp8_block": "float8_block",
}
SENT = (
    *DTYPES,
    *("float", "float32", "fp32", "double", "float64", "int8", "uint8", "int32", "uint32", "int64", "uint64"),
    *("f8e4m3", "f8e5m2", "fp8_e4m3", "fp8_e5m2"),
)
"""What collectives send, as nccl-tests and others call it: their bytes are given, so that all are priced alike."""
LARGEST = {"bytes": 10**15}
"""What a column may hold at most, where that is more than ten million."""
ITEM_BYTES = {"bfloat16": 2, "float16": 2, "float8": 1, "float8_block": 1, "float4": 1}


@dataclass(frozen=True, slots=True)
class Scored:
    gpu: str
    op: str
    dtype: str
    predicted_s: float
    measured_s: float
    subsets: tuple[str, ...] = ()

    @property
    def error(self) -> float:
        return self.predicted_s / self.measured_s - 1


def whole(row: Row, column: str, least: int = 1) -> int:
    return whole_number(column, row.get(column) or OPTIONAL.get(column, ""), least, LARGEST.get(column, 10**7))


def measured(row: Row) -> float:
    return positive_number("time_us", row["time_us"]) * 1e-6


def device(row: Row) -> str:
    name = gpu_names.device_name(row["gpu"])
    if name is None:
        raise Refused(f"gpu is {row['gpu']!r}, expected one of {', '.join(GPUS)}")
    return ALIASES[name]


def dtype(row: Row, column: str = "dtype") -> str:
    text = row.get(column) or OPTIONAL[column]
    if text.lower() not in DTYPES:
        raise Refused(f"{column} is {text!r}, expected one of {', '.join(DTYPES)}")
    return DTYPES[text.lower()]


@lru_cache
def profile(name: str) -> DeviceProfile:
    return profile_of(GPUS[name].device, library=True)


@lru_cache
def inside(name: str, size: int) -> Axis:
    alias = next((alias for alias, full in ALIASES.items() if full == name), None)
    if alias is None or name not in HOSTS:
        raise Refused(f"gpu is {name}, a device whose hosts are not known")
    try:
        return devices_of(alias, 1, size).mesh((size,)).axes[0]
    except MeshwrightError as error:
        raise Refused(f"num_gpus is {size}: {error.given}") from None


def collectives(row: Row) -> Scored:
    name, size, n_bytes = device(row), whole(row, "num_gpus", 2), whole(row, "bytes")
    op = re.sub("[^a-z]", "", row["op"].lower())
    op = next((kind for kind in KINDS if kind.replace("_", "") == op), row["op"])
    try:
        seconds = collective_s(op, n_bytes, inside(name, size))
    except MeshwrightError as error:
        raise Refused(str(error.given)) from None
    sent = row.get("dtype") or "half"
    if sent.lower() not in SENT:
        raise Refused(f"dtype is {sent!r}, expected one of {', '.join(SENT)}")
    large = ("from 1 MiB on",) if n_bytes >= 1 << 20 else ()
    return Scored(name, op, sent, seconds, measured(row), ("all sizes", *large))


def check_unit(name: str, kind: str) -> None:
    if kind not in ("bfloat16", "float16") and kind.removesuffix("_block") not in dict(GPUS[name].device.peaks):
        raise Refused(f"no unit for {kind} on {name}")


def gemm(row: Row) -> Scored:
    name, kind = device(row), dtype(row)
    check_unit(name, kind)
    m, n, k = (whole(row, column) for column in "mnk")
    seconds = profile(name).matmul_s("nt", kind, ITEM_BYTES[kind], m, n, k)
    large = ("m >= 2048, n and k >= 1024",) if m >= 2048 and min(n, k) >= 1024 else ()
    wide = ("n and k >= 2048",) if min(n, k) >= 2048 else ()
    return Scored(name, "gemm", row.get("dtype") or kind, seconds, measured(row), (*large, *wide))


def attention(row: Row) -> Scored:
    name, kind = device(row), dtype(row, "kv_dtype")
    check_unit(name, kind)
    batch, seq, heads, kv_heads, width = (
        whole(row, column) for column in ("batch", "seq", "heads", "kv_heads", "head_dim")
    )
    if heads % kv_heads:
        raise Refused(f"heads is {heads} and kv_heads {kv_heads}, expected a divisor")
    seconds = profile(name).attention_s(
        "causal", "forward", kind, 2, batch * heads, seq, seq, width, heads // kv_heads, whole(row, "window", 0)
    )
    return Scored(name, "attention", row.get("kv_dtype") or kind, seconds, measured(row), ("all sizes",))


def moe(row: Row) -> Scored:
    name, kind = device(row), dtype(row)
    tokens, hidden, ffn, topk, experts, tp, ep = (
        whole(row, column) for column in ("tokens", "hidden", "ffn", "topk", "experts", "tp", "ep")
    )
    if topk > experts or experts % ep or ffn % tp:
        raise Refused(f"topk {topk} of {experts} experts over ep {ep}, ffn {ffn} over tp {tp}: expected divisors")
    skew = (row.get("distribution") or "balanced").removeprefix("power_law_")
    level = 0.0 if skew == "balanced" else positive_number("distribution", skew, 0.0, 10.0)
    seconds = profile(name).mixture_s(kind, tokens, hidden, ffn // tp, topk, experts // ep, ep, level)
    if seconds is None:
        raise Refused(f"no mixture of experts was measured on {name} in {kind}")
    return Scored(name, "moe", row.get("dtype") or kind, seconds, measured(row), ("all sizes",))


PRICES: dict[str, Callable[[Row], Scored]] = {
    "collectives": collectives,
    "attention": attention,
    "moe": moe,
    "gemm": gemm,
}


def kind_of(columns: list[str]) -> str:
    """Which table it is; one that lacks a column is refused as a whole, by the column's name."""
    for kind, told_by in TOLD_BY.items():
        if told_by in columns:
            missing = [column for column in COLUMNS[kind] if column not in columns]
            if missing:
                raise Refused(f"a table of {kind} without the columns {', '.join(missing)}")
            return kind
    raise Refused(f"columns {', '.join(columns)[:200]}; expected those of {', '.join(COLUMNS)}")


def score(path: Path, skipped: list[dict[str, object]]) -> Iterator[Scored]:
    try:
        rows = read_table(path)
        kind = kind_of([column for column in rows[0] if column != WRONG])
    except Refused as error:
        skipped.append({"table": str(path), "row": None, "reason": str(error)})
        return
    for number, row in enumerate(rows):
        try:
            if WRONG in row:
                raise Refused(row[WRONG])
            yield PRICES[kind](row)
        except Refused as error:
            skipped.append({"table": str(path), "row": number, "reason": str(error)})
        except (ArithmeticError, ValueError, LookupError, TypeError) as error:  # of a row that nobody has seen
            skipped.append({"table": str(path), "row": number, "reason": f"{type(error).__name__}: {error}"})


def summary(rows: list[Scored]) -> dict[str, float | int]:
    errors = [row.error for row in rows]
    return {
        "rows": len(rows),
        "median_abs_error": median(map(abs, errors)),
        "mean_abs_error": fmean(map(abs, errors)),
        "bias": fmean(errors),
    }


def report(rows: list[Scored], skipped: list[dict[str, object]]) -> dict[str, object]:
    groups: dict[tuple[str, str, str], list[Scored]] = defaultdict(list)
    subsets: dict[tuple[str, str, str], list[Scored]] = defaultdict(list)
    for row in rows:
        groups[row.gpu, row.op, row.dtype].append(row)
        family = "collectives" if row.op not in ("gemm", "attention", "moe") else row.op
        for subset in row.subsets:
            name = f"{row.dtype}, {subset}" if row.op == "gemm" else subset
            subsets[row.gpu, family, name].append(row)
    return {
        "groups": {
            f"{gpu}/{op}/{dtype}": {"gpu": gpu, "op": op, "dtype": dtype, **summary(some)}
            for (gpu, op, dtype), some in sorted(groups.items())
        },
        "subsets": {
            f"{gpu}/{op}/{name}": {"gpu": gpu, "op": op, "subset": name, **summary(some)}
            for (gpu, op, name), some in sorted(subsets.items())
        },
        "skipped": skipped,
    }


def show(found: dict[str, object]) -> None:
    for part, last in (("groups", "dtype"), ("subsets", "subset")):
        print(f"\n{part}: {'gpu':22}{'op':16}{last:38}{'rows':>6}{'median':>9}{'mean':>9}{'bias':>9}")
        for one in found[part].values():  # type: ignore[attr-defined]
            print(
                f"{'':{len(part) + 2}}{one['gpu']:22}{one['op']:16}{one[last]:38}{one['rows']:6}"
                f"{one['median_abs_error']:9.1%}{one['mean_abs_error']:9.1%}{one['bias']:+9.1%}"
            )
    skipped: list[dict[str, object]] = found["skipped"]  # type: ignore[assignment]
    print(f"\nleft out: {len(skipped)}")
    for (table, reason), count in Counter((str(one["table"]), str(one["reason"])) for one in skipped).most_common():
        print(f"  {table}: {count} x {reason}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="+", type=Path)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    check_written(args.json)
    skipped: list[dict[str, object]] = []
    rows = [scored for path in args.tables for scored in score(path, skipped)]
    found = report(rows, skipped)
    show(found)
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0 if rows else 1


if __name__ == "__main__":
    sys.exit(main())
