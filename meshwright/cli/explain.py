"""`meshwright explain`: why a plan is what it is, what an op or a weight could do instead, two plans compared."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from meshwright.cli.options import add_plans_model

if TYPE_CHECKING:
    from meshwright.capture.program import Program
    from meshwright.plan import Plan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("plan", help="a plan file")
    parser.add_argument(
        "names", nargs="*", help="weights (layers.0.up.weight) or ops (LAYER:OP) whose alternatives to list"
    )
    parser.add_argument("--against", metavar="PLAN", help="another plan file: say what differs")
    parser.add_argument(
        "--what-if",
        action="append",
        default=[],
        metavar="PIN",
        help="plan again with this pin changed or added (tp=4; tp= drops it) and say what differs",
    )
    parser.add_argument("--cluster", help="for --what-if: another cluster, or the file of the plan's")
    add_plans_model(parser)
    parser.add_argument("--limit", type=int, default=12, metavar="N", help="alternatives to list of each (default 12)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from meshwright.errors import PlanError
    from meshwright.explain.diff import diff
    from meshwright.explain.explain import explain
    from meshwright.plan.origin import program_of

    if args.limit < 1:
        raise PlanError(f"--limit {args.limit}", "a number from 1", "give a larger number")
    plan, program = _checked(args.plan, args.of)
    if args.against:
        print(diff(plan, _checked(args.against, args.of)[0]) or "the two plans decide the same")
        return 0
    if not args.names and not args.what_if:
        if program is None:
            print(explain(plan))
        else:
            from meshwright.report.per_layer import at_peak, show_layers

            names = [segment.name for segment in program.segments]
            print(explain(plan, at_peak(plan, program), names))
            print("\n".join(["", *show_layers(plan, program)]))
        return 0
    program = program or program_of(plan, args.plan, args.of)  # which says why there is none
    if args.what_if:
        print(_what_if(plan, program, args.what_if, args.cluster))
    _alternatives(plan, program, args.names, args.limit)
    return 0


def _what_if(plan: Plan, program: Program, pins: list[str], cluster: str | None) -> str:
    """How the plan is parallelised then, step and peak first, and what differs."""
    from meshwright.explain.diff import diff
    from meshwright.explain.what_if import what_if
    from meshwright.explain.words import headline
    from meshwright.planner.progress import Progress

    with Progress(True) as progress:
        progress.doing(f"planning again with {' '.join(pins)}")
        other = what_if(plan, program, pins, cluster, progress.found, progress.on_node)
    lines = diff(plan, replace(other, pins=plan.pins)).splitlines()  # what was asked for is known
    if not lines:
        return "the plan stays as it is"
    figures = [line for line in lines if line.startswith(("step: ", "peak: "))]
    rest = [line for line in lines if line not in figures]
    whole = " + 1 micro-batch" if other.microbatches == 1 else ""
    return "\n".join([f"then: {headline(other)}{whole}", *figures, *(["what differs:"] if rest else []), *rest])


def _checked(path: str, model: str | None) -> tuple[Plan, Program | None]:
    """A plan file that nobody made nonsense of, at today's prices, and its Program where its model is here."""
    from meshwright.plan import Plan
    from meshwright.plan.origin import program_here
    from meshwright.plan.validate import preset_named
    from meshwright.planner.model_pins import check_storage
    from meshwright.predict.reloaded import reprice_loaded
    from meshwright.price.check import check_plan

    plan = Plan.load(path)
    if preset_named(plan.cluster) is None:
        own = f"the cluster {plan.cluster!r}, which is no preset: its devices and links are taken from the plan"
        print(f"meshwright: {path} is of {own}", file=sys.stderr)
    program, why = program_here(plan, path, model)
    if program is not None:
        check_plan(plan, program)
        check_storage(plan.pins, {one.name: one.type.sizes for one in program.parameters})
        plan, differs = reprice_loaded(plan, program)
        if differs:
            print(f"meshwright: {path} is explained at today's prices; {differs}", file=sys.stderr)
    elif why:
        print(f"meshwright: {path} is not held against its model {plan.model}: {why}", file=sys.stderr)
    return plan, program


def _alternatives(plan: Plan, program: Program, names: list[str], limit: int) -> None:
    from meshwright.explain.alternatives import alternatives_of, op_of
    from meshwright.explain.explain import TIERS
    from meshwright.plan.units import show_bytes, show_seconds
    from meshwright.rules import resolve_rule

    for name in names:
        found = alternatives_of(plan, program, name)
        if name not in plan.parameters:
            _, op, graph = op_of(plan, program, name)
            values = graph.values()
            rule = resolve_rule(op, tuple(values[one].type for one in op.operands()))
            source = TIERS[rule.tier]
            print(f"{op.target}, sharding rule from {source}: {rule.text}".rstrip(": "))
        layers = len(program.uses_of(name)) if name in plan.parameters else 1
        print(f"{name}: {_counted(plan, len(found), layers)}")
        for one in found[:limit]:
            sign = "-" if one.more_s < 0 else "+"
            held = f"{'-' if one.more_bytes < 0 else '+'}{show_bytes(abs(one.more_bytes))}"
            mark = "planned" if one.chosen else f"{sign}{show_seconds(abs(one.more_s))}"
            print(f"  {mark:>12}  {held:>10}  {one.text}")
    if names:
        print("layouts, per mesh axis: S(d) sharded on dim d, R and I replicated, P partial sum (docs/glossary.md)")


def _counted(plan: Plan, ways: int, layers: int) -> str:
    """layers: that read it."""
    if ways > 1:
        where = "its layer" if layers == 1 else f"the first of its {layers} layers"
        return f"{ways} ways; more or less seconds and bytes of {where}, all else as planned"
    alone = all(stage.mesh.world_size == 1 for stage in plan.stages)
    return f"no other way: {'one device shares with no other' if alone else 'its rule splits nothing on this mesh'}"
