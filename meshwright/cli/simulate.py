"""`meshwright simulate`: play a plan's instructions with predicted durations."""

from __future__ import annotations

import argparse

from meshwright.cli.options import add_plans_model, program_of_plan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("plan", help="a plan file written by `meshwright plan -o`")
    parser.add_argument(
        "--trace", metavar="FILE", help="write what runs when as a trace for ui.perfetto.dev, gzipped if named .gz"
    )
    parser.add_argument(
        "--memory-snapshot",
        metavar="FILE",
        help="write what is held when as a memory snapshot (pickle) for pytorch.org/memory_viz",
    )
    add_plans_model(parser)
    parser.add_argument("--wait", action="store_true", help="no overlap: wait for every gradient reduction")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from meshwright.models.arguments import check_folder
    from meshwright.plan import Plan
    from meshwright.predict.simulated import simulate_plan

    check_folder("--trace", args.trace)
    check_folder("--memory-snapshot", args.memory_snapshot)
    plan = Plan.load(args.plan)
    program = program_of_plan(plan, args.plan, args.of)
    timeline = simulate_plan(plan, program, overlap=not args.wait)
    print(timeline)
    if args.trace:
        timeline.trace(args.trace, [segment.name for segment in program.segments])
        print(f"trace written to {args.trace}; open it at ui.perfetto.dev")
    if args.memory_snapshot:
        from meshwright.simulate.snapshot import write_snapshot

        write_snapshot(timeline, args.memory_snapshot, [segment.name for segment in program.segments])
        print(f"snapshot written to {args.memory_snapshot}; open it at pytorch.org/memory_viz")
    return 0
