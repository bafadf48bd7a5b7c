"""`meshwright launch`: write the script that starts a plan on its hosts."""

from __future__ import annotations

import argparse
import shlex
from typing import Any

KINDS = ("torchrun", "slurm", "kubernetes", "ray")


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("launch", help="write the script that starts a plan on its hosts")
    add = parser.add_argument
    add("plan", help="a plan file written by `meshwright plan -o`")
    add("--print", dest="kind", choices=KINDS, default=KINDS[0], help=f"{', '.join(KINDS)} (default {KINDS[0]})")
    add("--train", default="", metavar="WORDS", help="options for `train`, as one word: --train='--steps 200'")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from meshwright.plan import Plan
    from meshwright.runtime.job.scripts import SCRIPTS, run_of

    extra = tuple(shlex.split(args.train))
    print(SCRIPTS[args.kind](run_of(Plan.load(args.plan), args.plan, extra)), end="")
    return 0
