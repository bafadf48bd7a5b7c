"""`meshwright profile`: what a model, or a plan of one, computes and needs, layer by layer; nothing is allocated."""

from __future__ import annotations

import argparse
import json
import time
import warnings
from dataclasses import asdict
from typing import TYPE_CHECKING

from meshwright.cli.options import PRECISIONS, SAMPLES, add_plans_model, program_of_plan
from meshwright.errors import ModelError
from meshwright.models.arguments import add_json, add_model_arguments, check_reference, reference_of, write_json

if TYPE_CHECKING:
    from meshwright.capture.program import Program


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser, plans=True)
    parser.add_argument("--batch", "--global-batch", type=int, metavar="N", help=SAMPLES)
    parser.add_argument(
        "--precision",
        choices=tuple(PRECISIONS),
        metavar="P",
        help="mixed (bf16 compute, fp32 weights; default for cuda), bf16, or fp32 (default for cpu)",
    )
    parser.add_argument(
        "--optimizer", choices=("adamw", "sgd", "momentum"), default="adamw", help="whose state counts (default adamw)"
    )
    parser.add_argument("--fused", action="store_true", help="the optimizer's fused implementation, not foreach")
    parser.add_argument(
        "--device", choices=("cuda", "cpu"), default="cuda", help="whose kernels are assumed (default cuda)"
    )
    add_plans_model(parser)
    add_json(parser, "the figures")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if str(args.model).endswith(".json"):
        return _of_plan(args)
    check_reference(args)
    args.precision = PRECISIONS[args.precision or ("mixed" if args.device == "cuda" else "fp32")]

    from meshwright.profile.show import show
    from meshwright.profile.step import profile_step

    reference, program, capture_s = _capture(args)
    profile = profile_step(
        program,
        optimizer=args.optimizer,
        precision=args.precision,
        device=args.device,
        implementation="fused" if args.fused else "foreach",
    )
    profile.verify()
    if args.json != "-":
        show(profile, reference, notes_of(program), program.warnings)
    if args.json:
        write_json(args.json, json.dumps({"model": reference, **profile.to_json(capture_s)}, indent=1))
    return 0


def _of_plan(args: argparse.Namespace) -> int:
    """A plan's layers, at the sizes that one device has of them."""
    from meshwright.explain.recommend import recommendation
    from meshwright.plan import Plan
    from meshwright.report.per_layer import per_layer, show_layers

    given = [f"--{name}" for name in ("batch", "seq") if getattr(args, name) is not None]
    if given:
        raise ModelError(
            f"{given[0]} with a plan file", "a plan's own sizes", "drop it, or plan again with these sizes"
        )
    plan = Plan.load(args.model)
    program = program_of_plan(plan, args.model, args.of)
    if args.json:
        rows, peaks = per_layer(plan, program)
        found = {"layers": [asdict(row) for row in rows], "peaks": [asdict(peak) for peak in peaks]}
        write_json(args.json, json.dumps(found, indent=1))
    if args.json != "-":
        print("\n".join([*recommendation(plan), "", *show_layers(plan, program)]))
    return 0


def notes_of(program: Program) -> list[str]:
    """What there is to know about a captured model, what keeps its batch in one piece included."""
    found = list(program.notes)
    if program.couples_samples:
        first, more = program.couples_samples[0], len(program.couples_samples) - 1
        found.append(f"samples are coupled: {first}{f', and {more} more ops' if more else ''}")
    return found


def _capture(args: argparse.Namespace) -> tuple[str, Program, float]:
    from meshwright.capture import capture
    from meshwright.errors import CaptureWarning, ModelError

    if args.batch is not None and args.batch < 1:
        raise ModelError(f"--batch {args.batch}", "at least 1", "give a larger batch")
    start_s = time.process_time()
    reference = reference_of(args)
    model, batch, loss = reference.meta(args.batch)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CaptureWarning)  # they are shown with the figures
        program = capture(model, batch, loss, precision=args.precision, keyed=False, allow=args.allow)
    return str(reference), program, time.process_time() - start_s
