"""`meshwright frontier`: the whole time-memory curve of a model, with the known ways to save memory on it."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import TYPE_CHECKING

from meshwright.cli.options import SAMPLES, add_precision, check_batch, check_words, precision_for
from meshwright.models.arguments import (
    add_json,
    add_model_arguments,
    check_folder,
    check_reference,
    reference_of,
    write_json,
)
from meshwright.sizes import parse_bytes

if TYPE_CHECKING:
    from meshwright.capture.program import Program
    from meshwright.cluster.device import Device
    from meshwright.errors import PlanError
    from meshwright.explain.memory_curve import Point


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument("--cluster", default="dgx-h200", help="a preset or a TOML file; one of its devices is taken")
    parser.add_argument("--global-batch", type=int, metavar="N", help=SAMPLES)
    parser.add_argument("--optimizer", default="adamw", help="adamw (default), momentum or sgd")
    add_precision(parser)
    parser.add_argument("--memory", metavar="SIZE", help="of the device, such as 16GiB: its plan is marked")
    parser.add_argument("--points", type=int, default=24, metavar="N", help="budgets to solve for (default 24)")
    parser.add_argument("--compile", action="store_true", help="as compiled by inductor; eager if absent")
    parser.add_argument("-o", "--output", metavar="FILE", help="write the plot here, as SVG")
    add_json(parser, "the points")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    check_reference(args)
    check_batch(args)
    check_words(args)
    limit_bytes = parse_bytes(args.memory)

    from pathlib import Path

    from meshwright.capture import capture
    from meshwright.cli.frontier_plot import knee, svg, table, text_plot
    from meshwright.cluster import load_cluster
    from meshwright.errors import ModelError
    from meshwright.explain.memory_curve import Point, one_device_frontier
    from meshwright.planner.one_device import one_device_cluster, one_device_mesh

    check_folder("-o", args.output)
    check_folder("--json", args.json)
    if args.points < 2:
        raise ModelError(f"--points {args.points}", "at least 2 points", "give a larger number")
    reference, cluster = reference_of(args), load_cluster(args.cluster)
    mesh, args.precision = one_device_mesh(one_device_cluster(cluster.devices[0])), precision_for(args, cluster)
    print(f"reading {reference}", file=sys.stderr, flush=True)
    program = capture(*reference.meta(args.global_batch), precision=args.precision, allow=args.allow)
    print(f"finding {args.points} plans from the least memory to all of it", file=sys.stderr, flush=True)
    before_s = time.process_time()
    curve = one_device_frontier(
        program,
        mesh,
        optimizer=args.optimizer,
        precision=args.precision,
        compiled=args.compile,
        points=args.points,
    )
    planned = None if limit_bytes is None else _planned(program, mesh.device, limit_bytes, args)
    run_as = "compiled" if args.compile else "eager"
    title = f"{reference}, batch {program.batch}, {args.precision}, {run_as}, one {mesh.device.name}"
    if args.json != "-":
        print("\n".join([title, table(curve, mesh.device, limit_bytes, planned), text_plot(curve)]))
        print(f"solved in {time.process_time() - before_s:.1f} CPU s")
    if args.output:
        Path(args.output).write_text(svg(curve, title), encoding="utf-8")
        print(f"plotted to {args.output}", file=sys.stderr)
    if args.json:
        turn, here = knee(curve), planned if isinstance(planned, Point) else None
        rows = [
            {"name": p.name, "peak_bytes": p.peak_bytes, "step_s": p.step_s, "microbatches": p.microbatches}
            | {"knee": p == turn, "at_limit": p == here}
            for p in (*curve.ours, *([here] if here and here not in curve.ours else []), *curve.others)
        ]
        write_json(args.json, json.dumps(rows, indent=1))
    return 0


def _planned(program: Program, device: Device, limit_bytes: int, args: argparse.Namespace) -> Point | PlanError:
    """What `plan` answers in this limit."""
    from meshwright.errors import PlanError
    from meshwright.explain.memory_curve import Point
    from meshwright.planner.one_device import one_device_cluster, one_device_search
    from meshwright.planner.request import PlanRequest
    from meshwright.price.parameter import Setting

    setting = Setting(args.optimizer, args.precision, compile=args.compile)
    request = PlanRequest(program, one_device_cluster(device), memory_bytes=limit_bytes, setting=setting)
    try:
        return Point.of("ours", one_device_search(request, ()))
    except PlanError as error:
        return error
