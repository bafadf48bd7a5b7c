"""`meshwright plan`: find a plan, show it next to the recipes people know, write it."""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
import warnings
from typing import TYPE_CHECKING, Any

from meshwright.cli.options import (
    add_training,
    assumed_batch,
    check_training,
    cluster_for,
    precision_for,
)
from meshwright.errors import counted
from meshwright.models.arguments import add_json, add_model_arguments, check_folder, reference_of, write_json
from meshwright.pins.check import check_pins
from meshwright.planner.effort import SIMPLER_WITHIN, check_part, effort_of, headroom_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from meshwright.capture.program import Program
    from meshwright.cluster import Cluster
    from meshwright.plan import Plan
    from meshwright.planner.progress import Progress

INTERRUPTED = 130
GARBAGE = 1_000_000
"""Objects after which garbage is looked for: a search leaves little, and looking took a twelfth of planning."""

RECIPES_S = 60.0
"""CPU seconds that known recipes may take in any case; else as many as planning took."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser, optional=True)
    add_training(parser)
    add = parser.add_argument
    add("--cluster", help="h100:8, dgx-h100:4, local:2, or a TOML file (default: this machine)")
    add(
        "--pin",
        action="append",
        default=[],
        help="pp=N (stages), layers=9+17 (of each stage), vpp=N (interleaved runs of each), "
        "schedule=1f1b, dp=N, tp=N, cp=N, ep=N, sp=on|off, zero=0..3, microbatch=N (how many), mesh=2x4, "
        "split=matmul, recompute=keep|full|selective|sqrt|rotor|flat|nested, "
        "offload=auto|optimizer|weights|optimizer:0.5 (to the host's memory), NAME=S(0); pins of a mesh or a weight "
        "mean plans of one stage, unless pp is pinned too",
    )
    add("--effort", default="default", metavar="E", help="how much is searched: fast, default or proof")
    add(
        "--simpler-within",
        type=float,
        default=SIMPLER_WITHIN,
        metavar="PART",
        help="of plans whose steps differ by no more than this part the simplest is taken (default 0.005)",
    )
    add("--headroom", type=float, metavar="PART", help="left free of each device without --memory (default 0.03)")
    add("--gap", type=float, default=0.0, metavar="PART", help="end at this proven gap, such as 0.02 (default 0)")
    add("--log", action="store_true", help="also print the search: nodes, bounds, incumbents, why nodes were pruned")
    add("--compile", action="store_true", help="run compiled by inductor, and price it so")
    add("--upgrade", metavar="OLD", help="read a plan file of schema 2, write it to -o")
    add("-o", "--output", metavar="FILE", help="write the plan here")
    add("--report", metavar="FILE", help="write the plan as a page (HTML, one file, no network)")
    add("--dump-problem", metavar="FILE", help="write the plan's selection problem, for `meshwright solve FILE`")
    add("--quiet", action="store_true", help="the recommendation alone, without progress, recipes and details")
    add_json(parser, "a summary")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    for option in ("output", "json", "report", "dump_problem"):
        flag = "-o" if option == "output" else f"--{option.replace('_', '-')}"
        check_folder(flag, getattr(args, option))
    if args.upgrade:
        return _upgrade(args)
    _check_model(args)
    reference = check_training(args)
    effort_of(args.effort)
    check_part("--simpler-within", args.simpler_within)
    check_part("--gap", args.gap)
    headroom_of(args.memory, args.headroom)
    check_pins(args.pin)  # their words, before the cluster's tables are read
    cluster = cluster_for(args.cluster)
    args.precision = precision_for(args, cluster)
    check_pins(args.pin, cluster, args.global_batch or (reference.family.batch if reference else None))

    # What takes seconds to import comes after what can be refused at once.
    gc.set_threshold(GARBAGE)
    from meshwright.planner.progress import Progress

    start_s, start_cpu_s = time.perf_counter(), time.process_time()
    with Progress(not args.quiet and args.json != "-") as progress:
        batch = f", global batch {args.global_batch}" if args.global_batch else ""
        what = f"{args.model} for {cluster.name}, {args.precision}{batch}"
        progress.doing(f"planning {what}: loading torch")
        plan, program, capture_s = _planned(args, cluster, progress)
        plan_s = time.perf_counter() - start_s
        progress.doing("pricing the recipes people know")
        from meshwright.planner.interrupt import STOP

        stopped = STOP.requested
        quick = stopped or (args.quiet and not args.json and not args.report)
        given = args.optimizer, args.precision, plan.memory_bytes, plan.pins, plan.compile
        until_s = time.process_time() + max(RECIPES_S, time.process_time() - start_cpu_s)
        others = [] if quick else _recipes(program, cluster, *given, headroom=plan.headroom, may_go_on=before(until_s))
        more = [note for note in (_assumed(args, program), "" if quick else _alone(plan, program, cluster)) if note]
    _write(args, plan, program, others, progress.lines)
    if args.dump_problem:
        _dump(args.dump_problem, plan, program)
    if args.json != "-":
        _show(args, plan, program, others, stopped, more)
    if args.json:
        from meshwright.cli.answer import summary

        write_json(args.json, json.dumps(summary(plan, program, others, plan_s, capture_s, more), indent=1))
    return INTERRUPTED if stopped else 0


def _recipes(*given: Any, **named: Any) -> Any:
    """Of the recipes people know; none where Ctrl-C ends their pricing, for the plan is known by then."""
    from meshwright.explain.recipes import baselines

    try:
        return baselines(*given, **named)
    except KeyboardInterrupt:
        print("meshwright: the recipes were not priced; the plan is complete", file=sys.stderr)
        return []


def _assumed(args: argparse.Namespace, program: Program) -> str:
    """Of the batch, where nobody gave it; a function of the user's own has its own."""
    from meshwright.plan.origin import runs_code

    if args.global_batch is not None or runs_code(args.model):
        return ""
    return assumed_batch(program.batch)


def _alone(*given: Any) -> str:
    """Of one device by itself; nothing where Ctrl-C ends its pricing."""
    from meshwright.explain.one_device import single_device_note

    try:
        return single_device_note(*given)
    except KeyboardInterrupt:
        return ""


def before(until_s: float) -> Callable[[], bool]:
    """Whether this process has used less CPU time: the planner itself reads no clock."""
    return lambda: time.process_time() < until_s


def _check_model(args: argparse.Namespace) -> None:
    from meshwright.errors import ModelError

    if args.model is None:
        eaten = args.json not in (None, "-") and not str(args.json).endswith(".json")
        todo = f"`--json` took {args.json}; write --json -, or put it last" if eaten else "name one"
        raise ModelError("no model", "a family, a named size, hf:TYPE or file.py:function", todo)


def _planned(args: argparse.Namespace, cluster: Cluster, progress: Progress) -> tuple[Plan, Program, float]:
    from meshwright.capture import capture
    from meshwright.errors import RuleWarning
    from meshwright.planner.model_pins import check_names
    from meshwright.planner.plan import make_plan
    from meshwright.sizes import parse_bytes

    gc.freeze()  # modules stay: looking through them for garbage takes a fifth of a second each time
    reference = reference_of(args)
    check_pins(args.pin, cluster, args.global_batch or reference.family.batch)
    progress.doing(f"capturing {args.model}")
    capture_s = time.process_time()
    model, batch, loss = reference.meta(args.global_batch)
    check_names(args.pin, model)
    program = capture(model, batch, loss, precision=args.precision, allow=args.allow)
    capture_s = time.process_time() - capture_s
    progress.doing(
        f"searching plans of {counted(len(program.segments), 'layer')} on {counted(cluster.device_count, 'device')}"
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "no rule was found", RuleWarning)  # it is printed with the plan
        plan = make_plan(
            program,
            cluster,
            model=str(reference),
            memory_bytes=parse_bytes(args.memory),
            optimizer=args.optimizer,
            precision=args.precision,
            compile=args.compile,
            pins=args.pin,
            simpler_within=args.simpler_within,
            effort=args.effort,
            gap=args.gap,
            headroom=args.headroom,
            on_incumbent=progress.found,
            on_node=progress.on_node,
        )
    return plan, program, capture_s


def _write(args: argparse.Namespace, plan: Plan, program: Program, others: Any, lines: Any) -> None:
    if args.output:
        plan.save(args.output)
    if args.report:
        from meshwright.report.page import write_report

        write_report(plan, args.report, program, others=others, search=lines, saved=args.output or "plan.json")


def _dump(path: str, plan: Plan, program: Program) -> None:
    from meshwright.planner.dump import dump_problem

    dump_problem(plan, program, path)
    print(f"problem written to {path}; solve it with `meshwright solve {path}`", file=sys.stderr)


def _show(args: argparse.Namespace, plan: Plan, program: Program, others: Any, stopped: bool, more: list[str]) -> None:
    from meshwright.cli.answer import answer, details, pins_cost, recipes

    if stopped:
        print("meshwright: stopped; this is the best plan found so far", file=sys.stderr)
    print(answer(plan, program, args.output, more))
    if not args.quiet:
        if others:
            print(f"\n{recipes(plan, others)}")
            if plan.pins:
                print(pins_cost(plan, others, args.output, args.cluster))
        print(f"\n{details(plan, program)}")
    if args.log:
        print(f"\nsearch:\n{plan.search_log}")
    if args.output:
        print(f"written to {args.output}; see why with `meshwright explain {args.output}`")
    if args.report:
        print(f"page written to {args.report}")


def _upgrade(args: argparse.Namespace) -> int:
    """A file of an older schema as one of today, at today's prices."""
    from meshwright.errors import PlanError
    from meshwright.explain.recommend import limit_bytes
    from meshwright.plan.origin import program_here
    from meshwright.plan.units import show_limit
    from meshwright.predict.reloaded import reprice_loaded
    from meshwright.schedule.upgrade import upgrade

    given = [name for name in ("model", "pin", "memory", "cluster", "compile") if getattr(args, name)]
    if given:
        named = ", ".join(name if name == "model" else f"--{name}" for name in given)
        raise PlanError(
            f"--upgrade with {named}", "the old file and -o alone", "upgrade first; plan again for another request"
        )
    if not args.output:
        raise PlanError("--upgrade without -o", "the file to write", "add -o NEW.json")
    plan = upgrade(args.upgrade)
    program, why = program_here(plan, args.upgrade)
    if program is None:
        differs = f"its prediction is the file's own: {why or 'it was made in Python, without the name of its model'}"
    else:
        plan.check_program(program)
        plan, differs = reprice_loaded(plan, program)
    plan.save(args.output)
    print(f"written to {args.output}" + (f"; {differs}" if differs else ""))
    if plan.predicted.peak_bytes > limit_bytes(plan):
        print(f"note: it no longer fits {show_limit(limit_bytes(plan))}; plan again")
    return 0
