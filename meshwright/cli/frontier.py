"""`meshwright frontier`: the whole time-memory curve of a model, with the known ways to save memory on it."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

from meshwright.cli.options import SAMPLES, check_batch
from meshwright.models.arguments import (
    add_json,
    add_model_arguments,
    check_folder,
    check_reference,
    reference_of,
    write_json,
)


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("frontier", help="the whole time-memory curve, with the known ways on it")
    add_model_arguments(parser)
    parser.add_argument("--cluster", default="dgx-h200", help="a preset or a TOML file; one of its devices is taken")
    parser.add_argument("--global-batch", type=int, metavar="N", help=SAMPLES)
    parser.add_argument("--optimizer", default="adamw", help="adamw (default), momentum or sgd")
    parser.add_argument("--precision", default="bf16", help="fp32, bf16 (default) or mixed")
    parser.add_argument("--points", type=int, default=24, metavar="N", help="budgets to solve for (default 24)")
    parser.add_argument("--eager", action="store_true", help="as without torch's compiler")
    parser.add_argument("-o", "--output", metavar="FILE", help="write the plot here, as SVG")
    add_json(parser, "the points")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    check_reference(args)

    from pathlib import Path

    from meshwright.capture import capture
    from meshwright.cli.frontier_plot import svg, table, text_plot
    from meshwright.cluster import load_cluster
    from meshwright.errors import ModelError
    from meshwright.solve.memory.frontier import one_device_frontier

    check_folder("-o", args.output)
    check_folder("--json", args.json)
    if args.points < 2:
        raise ModelError(f"--points {args.points}", "at least 2 points", "give a larger number")
    check_batch(args)
    reference = reference_of(args)
    mesh = load_cluster("local:1").mesh((1,)).renamed(("rep",))
    mesh = _on(mesh, load_cluster(args.cluster))
    program = capture(*reference.meta(args.global_batch), precision=args.precision, allow=args.allow)
    before_s = time.process_time()
    curve = one_device_frontier(
        program,
        mesh,
        optimizer=args.optimizer,
        precision=args.precision,
        compiled=not args.eager,
        points=args.points,
    )
    title = f"{reference}, batch {program.batch}, one {mesh.device.name}"
    if args.json != "-":
        print("\n".join([title, table(curve), text_plot(curve)]))
        print(f"solved in {time.process_time() - before_s:.1f} CPU s")
    if args.output:
        Path(args.output).write_text(svg(curve, title), encoding="utf-8")
        print(f"plotted to {args.output}", file=sys.stderr)
    if args.json:
        rows = [{"name": p.name, "peak_bytes": p.peak_bytes, "step_s": p.step_s} for p in (*curve.ours, *curve.others)]
        write_json(args.json, json.dumps(rows, indent=1))
    return 0


def _on(mesh: Any, cluster: Any) -> Any:
    """The mesh of one device, with the cluster's first kind of device."""
    from dataclasses import replace

    return replace(mesh, device=cluster.devices[0])
