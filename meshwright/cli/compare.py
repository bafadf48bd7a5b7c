"""`meshwright compare`: two plans beside each other, in the terminal and as a page."""

from __future__ import annotations

import argparse
from typing import Any


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("compare", help="show two plans beside each other, and what they decide differently")
    parser.add_argument("plan", help="a plan file")
    parser.add_argument("other", help="another plan file")
    parser.add_argument("--report", metavar="FILE", help="write the first as a page, with the other beside it")
    parser.add_argument("--model", metavar="REF", help="the plan's model, where it is a Python function of one's own")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from meshwright.models.arguments import check_folder

    check_folder("--report", args.report)

    from meshwright.plan import Plan
    from meshwright.report.compared import compared

    plan, other = Plan.load(args.plan), Plan.load(args.other)
    found = compared(plan, args.other, other)
    width = max(len(row[1]) for row in found["rows"])
    print(f"{'':<22} {args.plan:<{width}}  {args.other}")
    for name, mine, theirs in found["rows"]:
        print(f"{name:<22} {mine:<{width}}  {theirs}")
    print("\nwhat they decide differently:")
    print("\n".join(f"  {line}" for line in found["differs"]))
    if args.report:
        _write(args, plan, other)
        print(f"page written to {args.report}")
    return 0


def _write(args: argparse.Namespace, plan: Any, other: Any) -> None:
    import sys

    from meshwright.plan.origin import program_here
    from meshwright.report.page import write_report

    program, why = program_here(plan, args.plan, args.model)
    if program is None and why:
        print(f"meshwright: the page has no layers: {why}", file=sys.stderr)
    write_report(plan, args.report, program, against={args.other: other}, saved=args.plan)
