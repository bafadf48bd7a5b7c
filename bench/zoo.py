"""The zoo: models that nobody here wrote, and adversarial ones, each planned, run on two ranks and compared with eager.

    python bench/zoo.py [--only gpt2,res] [--source timm,peft] [--jobs 2] [--resume] [--again traceback,WRONG]

Needs `pip install -c constraints.txt -e ".[zoo]"`; sources whose package is missing are said to be not installed. Every
model has a process of its own with a limit of CPU seconds: captured; planned for 8 H100 (`dgx-h100:1`); planned and run
on two gloo ranks, freely and under tp=2 or zero=3; three AdamW steps on different batches with padded masks and ignored
labels; compared with plain PyTorch in one process in losses, gradients, parameters and buffers.

Outcomes: equal; refused (an error of ours that says what to do); and the faults: WRONG, abort (the interpreter died),
traceback, unnamed (an error of ours that says nothing to do), timeout. Writes out/zoo.json after each model and, with
`--page FILE`, the page. Exit status 1 where there is a fault.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":  # the folder of this file would hide modules of the standard library: it has a `select`
    sys.path[0] = sys.path[0].rpartition("/")[0]

import os

# Before torch is imported: trials fork, and threads of OpenMP do not come along.
os.environ |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}

import argparse
from pathlib import Path

from bench.zoo.children import Limits, run_all
from bench.zoo.lists import SOURCES, names_of
from bench.zoo.page import FAULTS, line, page, summary, write_page
from bench.zoo.rows import Row, joined, read, write
from bench.zoo.trial import Options


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="parts of names, separated by commas")
    parser.add_argument("--exactly", default="", help="whole names, separated by commas")
    parser.add_argument("--source", default="", help=f"of {', '.join(SOURCES)}")
    parser.add_argument("--jobs", type=int, default=1, help="models at a time")
    parser.add_argument("--limit", type=int, default=240, help="CPU seconds for each process of a model")
    parser.add_argument("--seconds", type=float, default=1e9, help="start no model after this many seconds")
    parser.add_argument("--resume", action="store_true", help="skip models that the JSON has")
    parser.add_argument("--again", default="", help="with --resume: outcomes that are tried again all the same")
    parser.add_argument("--every-pin", action="store_true", help="run tp=2 and zero=3 both, where both are planned")
    parser.add_argument("--reuse", action="store_true", help="ranks reuse the capture of the trial (quicker)")
    parser.add_argument("--double", action="store_true", help="in float64, to tell rounding from what is wrong")
    parser.add_argument("--parts", default="plan,run", help="`plan` (for 8 H100) or `run` alone; rows are joined")
    parser.add_argument("--json", default="out/zoo.json", metavar="FILE")
    parser.add_argument("--page", default="", metavar="FILE", help="write the table at its end (docs/models.md)")
    args = parser.parse_args()
    path = Path(args.json)
    rows = read(path)
    limits = Limits(args.limit, Options(args.every_pin, args.reuse, tuple(args.parts.split(",")), args.double))
    for row in run_all(_chosen(args, rows), args.jobs, limits, args.seconds):
        rows[row["name"]] = joined(rows.get(row["name"]), row, limits.options.parts)
        write(path, rows)
        print(line(row), flush=True)
    print(summary(list(rows.values())))
    if args.page:
        write_page(Path(args.page), page(list(rows.values())))
    return 1 if any(row["outcome"] in FAULTS for row in rows.values()) else 0


def _chosen(args: argparse.Namespace, rows: dict[str, Row]) -> list[str]:
    sources = args.source.split(",") if args.source else list(SOURCES)
    parts, again = args.only.split(","), args.again.split(",")
    names = [name for source in sources for name in names_of(source) if any(part in name for part in parts)]
    if args.exactly:
        names = [name for name in names if name in args.exactly.split(",")]
    return [name for name in names if not args.resume or name not in rows or rows[name]["outcome"] in again]


if __name__ == "__main__":
    sys.exit(main())
