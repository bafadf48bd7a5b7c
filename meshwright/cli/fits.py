"""`meshwright fits MODEL`: one line per GPU kind and count: fits or not, by which recipe, how fast."""

from __future__ import annotations

import argparse
import json
import warnings
from typing import TYPE_CHECKING, Any

from meshwright.cli.options import add_training, check_training, precision_for
from meshwright.errors import ModelError
from meshwright.models.arguments import add_json, add_model_arguments, check_folder, reference_of, write_json

if TYPE_CHECKING:
    from meshwright.capture.program import Program
    from meshwright.cluster import Cluster

GPUS = "4090,l40s,a100,h100,h200,b200"
COUNTS = "1,2,8"


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("fits", help="say on which GPUs a model can be trained, by which recipe, how fast")
    add_model_arguments(parser)
    add_training(parser)
    parser.add_argument("--gpus", default=GPUS, metavar="NAMES", help=f"kinds, by short names (default {GPUS})")
    parser.add_argument("--counts", default=COUNTS, metavar="N,...", help=f"of each, in one host (default {COUNTS})")
    add_json(parser, "the rows")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """0 where something fits, 1 where nothing does."""
    check_folder("--json", args.json)
    check_training(args)

    from meshwright.cluster import load_cluster

    counts = args.counts.split(",")
    if not all(count.isdecimal() and int(count) for count in counts):
        raise ModelError(f"--counts {args.counts}", "whole numbers from 1, such as 1,2,8", "correct it")
    clusters = [load_cluster(f"{gpu}:{count}") for gpu in args.gpus.split(",") for count in counts]

    from meshwright.capture import capture
    from meshwright.errors import RuleWarning

    reference, programs = reference_of(args), {}
    rows: list[dict[str, Any]] = []
    for cluster in clusters:
        precision = precision_for(args, cluster)
        if precision not in programs:
            given = reference.meta(args.global_batch)
            programs[precision] = capture(*given, precision=precision, allow=args.allow)  # type: ignore[arg-type]
            if args.json != "-" and not rows:
                batch = programs[precision].batch
                print(f"{reference}, global batch {batch}, {args.optimizer}; step and memory of each GPU:")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuleWarning)
            rows.append(_row(args, programs[precision], cluster, precision))
        if args.json != "-":
            print(_line(rows[-1]), flush=True)
    if args.json:
        write_json(args.json, json.dumps(rows, indent=1))
    return 0 if any(row["fits"] for row in rows) else 1


def _row(args: argparse.Namespace, program: Program, cluster: Cluster, precision: str) -> dict[str, Any]:
    """By the fastest known recipe of one stage; then by any plan that recomputes all activations."""
    from meshwright.sizes import parse_bytes
    from meshwright.solve.baselines import ONE_DEVICE, SERVER, baselines

    memory = parse_bytes(args.memory)
    row: dict[str, Any] = {"cluster": cluster.name, "precision": precision, "fits": False}
    found = baselines(program, cluster, args.optimizer, precision, memory, stages=False)
    met = [one for one in found if one.step_s is not None and one.name != SERVER]
    fitting = [one for one in met if one.fits]
    if fitting:
        best = min(fitting, key=lambda one: one.step_s or 0.0)
        alone = "one GPU" + ("" if best.name == next(iter(ONE_DEVICE)) else f" + {best.name}")
        name = alone if cluster.device_count == 1 else best.name
        return row | _figures(program, True, name, best.step_s, best.peak_bytes)
    return row | _checkpointed(args, program, cluster, precision, memory)


def _checkpointed(
    args: argparse.Namespace, program: Program, cluster: Cluster, precision: str, memory: int | None
) -> dict[str, Any]:
    from meshwright.errors import MeshwrightError
    from meshwright.solve.plan import make_plan

    number = cluster.device_count
    sharded = (f"mesh={number}", f"dp={number}", "zero=3") if number > 1 and program.batch % number == 0 else ()
    name = f"{'FSDP' if sharded else 'one GPU' if number == 1 else 'best'} + activation checkpointing"
    given = {"memory_bytes": memory, "optimizer": args.optimizer, "precision": precision}
    try:
        plan = make_plan(program, cluster, pins=(*sharded, "recompute=full"), **given)
    except MeshwrightError as error:
        return {"fits": False, "why": error.given}
    return _figures(program, True, name, plan.predicted.step_s, plan.predicted.peak_bytes)


def _figures(program: Program, fits: bool, recipe: str, step_s: Any, peak_bytes: Any) -> dict[str, Any]:
    from math import prod

    shapes = [value.type.at(program.batch) for value in program.inputs]
    texts = [prod(one.sizes) for one in shapes if one.dtype in ("int64", "int32") and len(one.sizes) == 2]
    return {
        "fits": fits,
        "recipe": recipe,
        "step_seconds": step_s,
        "peak_bytes": peak_bytes,
        "tokens_per_second": texts[0] / step_s if texts else None,
        "samples_per_second": program.batch / step_s,
    }


def _line(row: dict[str, Any]) -> str:
    from meshwright.plan.units import show_bytes, show_seconds

    if not row["fits"]:
        return f"{row['cluster']:<12} does not fit: {row['why']}"
    step, held = show_seconds(row["step_seconds"]), show_bytes(row["peak_bytes"])
    unit = "samples" if row["tokens_per_second"] is None else "tokens"
    speed = row[f"{unit}_per_second"]
    return f"{row['cluster']:<12} fits  {speed:>12,.0f} {unit}/s  {step:>8}  {held:>9}  {row['recipe']}"
