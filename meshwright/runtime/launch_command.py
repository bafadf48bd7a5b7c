"""`meshwright launch`: write the script that starts a plan on its hosts."""

from __future__ import annotations

import argparse
from typing import Any


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("launch", help="write the script that starts a plan on its hosts")
    parser.add_argument("plan", help="a plan file written by `meshwright plan -o`")
    parser.add_argument(
        "--print", dest="kind", choices=("torchrun", "slurm", "kubernetes", "ray"), default="torchrun", metavar="KIND",
        help="torchrun (default), slurm, kubernetes or ray",
    )  # fmt: skip
    parser.add_argument(
        "rest", nargs=argparse.REMAINDER, help="what `meshwright train` is to be told besides, after --"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from meshwright.plan import Plan
    from meshwright.runtime.scripts import SCRIPTS, run_of

    rest = tuple(word for word in args.rest if word != "--")
    print(SCRIPTS[args.kind](run_of(Plan.load(args.plan), args.plan, rest)), end="")
    return 0
