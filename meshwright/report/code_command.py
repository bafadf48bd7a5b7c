"""`meshwright code`: the Python that a plan makes each rank run."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("plan", help="a plan file written by `meshwright plan -o`")
    parser.add_argument(
        "--pair",
        metavar="LAYER",
        type=int,
        help="print the traced forward and backward of the layer with this number instead",
    )
    parser.add_argument(
        "--model", metavar="REF", help="the plan's model, where it is a function of your own: file.py:function"
    )
    parser.add_argument("--rank", type=int, default=0, help="whose sizes are shown where they are cut unevenly")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from meshwright.errors import PlanError
    from meshwright.generate.pair import SegmentPair
    from meshwright.generate.program import generate
    from meshwright.plan import Plan
    from meshwright.plan.origin import program_of
    from meshwright.price.check import check_plan
    from meshwright.report.code import code

    plan = Plan.load(args.plan)
    program = program_of(plan, args.plan, args.model)
    check_plan(plan, program)
    if not 0 <= args.rank < plan.world_size:
        raise PlanError(f"--rank {args.rank}", f"a rank from 0 to {plan.world_size - 1}", "name one of these")
    if args.pair is None:
        print(code(program, plan, args.rank), end="")
        return 0
    if not 0 <= args.pair < len(program.segments):
        raise PlanError(f"--pair {args.pair}", f"a layer from 0 to {len(program.segments) - 1}")
    pair = generate(program, plan, stage=plan.stage_of(args.pair)).pairs[args.pair]
    if not isinstance(pair, SegmentPair):
        pair = pair.part
    print(f"# saved: {', '.join(pair.saved)}")
    print(pair.halves.first.code.replace("def forward(self, ", "def forward("))
    print(pair.halves.second.code.replace("def forward(self, ", "def backward("))
    return 0
