"""`meshwright compare`: two plans side by side, or a plan and a profiler's trace of its run."""

from __future__ import annotations

import argparse
from typing import Any

from meshwright.cli.options import add_plans_model, program_of_plan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("plan", help="a plan file")
    parser.add_argument("other", help="another plan file, or a torch profiler's trace of the plan's run")
    parser.add_argument("--report", metavar="FILE", help="write the first as a page, compared with the other")
    add_plans_model(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from meshwright.models.arguments import check_folder

    check_folder("--report", args.report)

    from meshwright.plan import Plan
    from meshwright.report.compared import compare
    from meshwright.report.traced import is_trace

    if is_trace(args.other):
        return _with_trace(args)
    print(compare(args.plan, args.other))
    if args.report:
        _write(args, Plan.load(args.plan), Plan.load(args.other))
        print(f"page written to {args.report}")
    return 0


def _with_trace(args: argparse.Namespace) -> int:
    from meshwright.errors import PlanError
    from meshwright.plan import Plan
    from meshwright.report.traced import show_trace

    if args.report:
        raise PlanError(f"--report {args.report} with a trace", "two plans, for a page of both", "drop --report")
    plan = Plan.load(args.plan)
    print("\n".join(show_trace(plan, program_of_plan(plan, args.plan, args.of), args.other)))
    return 0


def _write(args: argparse.Namespace, plan: Any, other: Any) -> None:
    import sys

    from meshwright.plan.origin import program_here
    from meshwright.report.page import write_report

    program, why = program_here(plan, args.plan, args.of)
    if program is None and why:
        print(f"meshwright: the page has no layers: {why}", file=sys.stderr)
    write_report(plan, args.report, program, against={args.other: other}, saved=args.plan)
