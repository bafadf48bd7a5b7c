"""`meshwright plan`: find a plan, show it beside the alternatives, write it."""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
import warnings
from typing import TYPE_CHECKING, Any

from meshwright.models.arguments import add_model_arguments, check_folder, reference_of

if TYPE_CHECKING:
    from meshwright.capture.program import Program
    from meshwright.plan import Plan
    from meshwright.solve.baselines import Baseline


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("plan", help="find the fastest plan that fits, and show what others would cost")
    add_model_arguments(parser, optional=True)
    parser.add_argument("--cluster", default="local:2", help="a preset (local:2, dgx-h100:1) or a TOML file")
    parser.add_argument("--global-batch", type=int, default=8, metavar="N", help="samples per step (default 8)")
    parser.add_argument("--memory", metavar="SIZE", help="limit per device, such as 20GiB; the device's own if absent")
    parser.add_argument("--optimizer", default="adamw", help="adamw (default), momentum or sgd")
    parser.add_argument("--precision", default="fp32", help="fp32 (default), bf16 or mixed")
    parser.add_argument(
        "--pin",
        action="append",
        default=[],
        help="pp=N (stages), schedule=1f1b, dp=N, tp=N, sp=on|off, zero=0..3, microbatch=N (how many), mesh=2x4, "
        "split=matmul, recompute=keep|full|selective|sqrt|rotor|flat|nested, NAME=S(0); pins of a mesh or a weight "
        "mean plans of one stage, unless pp is pinned too",
    )
    parser.add_argument(
        "--stage-method", default="auto", metavar="M", help="search for stages: auto, beam, recursive, mcmc, mcts or rl"
    )
    parser.add_argument("--compile", action="store_true", help="run compiled by inductor; priced as eager so far")
    parser.add_argument("--upgrade", metavar="OLD", help="read a plan file of schema 2, write it to -o")
    parser.add_argument("-o", "--output", metavar="FILE", help="write the plan here")
    parser.add_argument("--report", metavar="FILE", help="write the plan as a page (HTML, one file, no network)")
    parser.add_argument("--json", metavar="FILE", help="write a summary as JSON; - for standard output")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from meshwright.cluster import load_cluster
    from meshwright.errors import ModelError, RuleWarning
    from meshwright.pins.spelling import check_spelling

    start_s = time.perf_counter()
    check_folder("-o", args.output)
    if args.upgrade:
        return _upgrade(args)
    if args.model is None:
        raise ModelError("no model", "a family, a named size, hf:TYPE or file.py:function", "name one")
    check_folder("--json", args.json)
    check_folder("--report", args.report)
    if args.global_batch < 1:
        raise ModelError(f"--global-batch {args.global_batch}", "at least 1", "give a larger batch")
    cluster = load_cluster(args.cluster)
    check_spelling(args.pin, cluster)

    # What takes seconds to import comes after what can be refused at once.
    from meshwright.capture import capture
    from meshwright.explain.describe import describe
    from meshwright.plan.units import parse_bytes
    from meshwright.solve.baselines import baselines
    from meshwright.solve.figures import speed, unserved
    from meshwright.solve.pin_words import check_words
    from meshwright.solve.plan import make_plan

    gc.freeze()  # modules stay: looking through them for garbage takes a fifth of a second each time
    reference = reference_of(args)
    memory_bytes = parse_bytes(args.memory)
    check_words(args.pin, cluster)
    capture_s = time.process_time()
    program = capture(*reference.meta(args.global_batch), precision=args.precision, allow=args.allow)
    capture_s = time.process_time() - capture_s
    shown = args.json != "-" and sys.stderr.isatty()
    log = Log(shown)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "no rule was found", RuleWarning)  # it is printed with the plan
        plan = make_plan(
            program,
            cluster,
            model=str(reference),
            memory_bytes=memory_bytes,
            optimizer=args.optimizer,
            precision=args.precision,
            compile=args.compile,
            pins=args.pin,
            stage_method=args.stage_method,
            progress=log.found,
        )
    if shown:
        _progress("")
    plan_s = time.perf_counter() - start_s
    others = baselines(program, cluster, args.optimizer, args.precision, memory_bytes, plan.pins)
    if args.output:
        plan.save(args.output)
    if args.report:
        from meshwright.report.page import write_report

        write_report(plan, args.report, program, others=others, search=log.lines, saved=args.output or "plan.json")
    if args.json != "-":
        print(describe(plan))
        print(speed(plan, program))
        if line := unserved(program):
            print(line)
        print(alternatives(plan, others))
    if args.json:
        text = json.dumps(summary(plan, program, others, plan_s, capture_s), indent=1)
        if args.json == "-":
            print(text)
        else:
            _write(args.json, text)
    if args.output and args.json != "-":
        see = "the code with `meshwright code" if len(plan.stages) == 1 else "why with `meshwright explain"
        print(f"written to {args.output}; see {see} {args.output}`")
    if args.report and args.json != "-":
        print(f"page written to {args.report}")
    return 0


def _upgrade(args: argparse.Namespace) -> int:
    from meshwright.errors import PlanError
    from meshwright.schedule.upgrade import upgrade

    if not args.output:
        raise PlanError("--upgrade without -o", "the file to write", "add -o NEW.json")
    upgrade(args.upgrade).save(args.output)
    print(f"written to {args.output}")
    return 0


class Log:
    """What the search found, with the seconds it took; shown as it comes, if anybody looks."""

    def __init__(self, shown: bool) -> None:
        self.lines: list[tuple[float, str]] = []
        self._shown, self._start_s = shown, time.perf_counter()

    def found(self, line: str) -> None:
        self.lines.append((time.perf_counter() - self._start_s, line))
        if self._shown:
            _progress(line)


def _progress(line: str) -> None:
    """One line, written over: the best so far while solving."""
    print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)


def alternatives(plan: Plan, others: list[Baseline]) -> str:
    from meshwright.plan.units import show_bytes, show_seconds

    cut = any(text.startswith(("microbatch=", "microbatches=")) for text in plan.pins)
    number = "in as many micro-batches" if cut else "each at its best number of micro-batches"
    lines = ["", f"alternatives, by the same prices, {number}:"]
    for other in others:
        if other.step_s is None or other.peak_bytes is None:
            lines.append(f"  {other.name:<24} not possible: {other.why}")
            continue
        ratio = other.step_s / plan.predicted.step_s
        fits = "" if other.fits else "  does not fit"
        seconds, held = show_seconds(other.step_s), show_bytes(other.peak_bytes)
        lines.append(f"  {other.name:<24} {seconds:>9}  {ratio:5.2f}x  {held:>9}{fits}")
    return "\n".join(lines)


def summary(plan: Plan, program: Program, others: list[Baseline], plan_s: float, capture_s: float) -> dict[str, Any]:
    from meshwright.rules import served
    from meshwright.solve.figures import figures

    found, tiers = plan.predicted, served(program)
    return {
        "plan_seconds": plan_s,
        "capture_seconds": capture_s,
        "optimality_gap": found.gap,
        "solver_step_seconds": found.step_s,
        "predicted": figures(plan, program),
        "mesh": {axis.name: axis.size for axis in plan.stages[0].mesh.axes},
        "chosen": _chosen(plan),
        "baselines": [
            {"name": other.name, "step_seconds": other.step_s, "peak_bytes": other.peak_bytes, "fits": other.fits}
            | ({"why": other.why} if other.why else {})
            for other in others
        ],
        "fallback_ops": list(tiers["fallback"]),
        "rule_tiers": {name: list(targets) for name, targets in tiers.items()},
    }


def _chosen(plan: Plan) -> dict[str, Any]:
    """Degrees by name, of a pipeline its first stage's; and of a pipeline what each stage is."""
    found: dict[str, Any] = {axis.name: axis.size for axis in plan.stages[0].mesh.axes}
    found |= {"microbatches": plan.microbatches, "pp": len(plan.groups), "schedule": plan.schedule}
    if len(plan.stages) > 1:
        found["bubble"] = plan.predicted.bubble
        found["stages"] = [
            {
                "first": stage.first,
                "end": stage.end,
                "mesh": {axis.name: axis.size for axis in stage.mesh.axes},
                "device": stage.mesh.device.name,
            }
            for stage in plan.stages
        ]
    return found


def _write(path: str, text: str) -> None:
    from meshwright.errors import PlanError

    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text + "\n")
    except OSError as error:
        print(text, file=sys.stderr)
        raise PlanError(f"{path} cannot be written: {error.strerror}", "a writable path") from error
