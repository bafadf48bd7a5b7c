"""`meshwright solve INSTANCE.json.gz`: solves a file in the contest's form and prints progress and result."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from typing import TYPE_CHECKING, Any

from meshwright.errors import ProblemError
from meshwright.models.arguments import add_json, check_folder, write_json

if TYPE_CHECKING:
    from meshwright.select.selection import Progress, Selection


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "instance", help="a .json or .json.gz file, such as `meshwright plan MODEL --dump-problem FILE` writes"
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="time limit, reading included (default 60)")
    parser.add_argument(
        "--work", type=float, default=None, help="limit in million steps instead, for a result that repeats"
    )
    parser.add_argument("--gap", type=float, default=0.0, help="stop at this proven gap (default 0: optimal)")
    parser.add_argument("--method", default="auto", help="auto, ilp, elimination, beam, recursive, mcmc, mcts or rl")
    parser.add_argument("--seed", type=int, default=0)
    add_json(parser, "the result")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """0 when a feasible choice was found, 1 when not."""
    from meshwright.select import solve
    from meshwright.select.contest import FORM, WRITTEN, load
    from meshwright.select.solve import check

    began = time.perf_counter()
    check_folder("--json", args.json)
    check(args.seconds, args.work, args.gap, args.method, args.seed)
    if not os.path.isfile(args.instance):
        raise ProblemError(f"no file {args.instance}", FORM, WRITTEN)
    problem = load(args.instance)
    printed = args.json != "-"
    if printed:
        print(f"{problem.name}: {problem.nodes} nodes, {problem.edges} edges, {len(problem.limits)} rows")
        print(f"{'seconds':>9} {'cost':>18} {'bound':>18} {'gap':>9}  stage")
    selection = solve(
        problem,
        seconds=max(1e-3, args.seconds - (time.perf_counter() - began)),
        work=args.work,
        gap=args.gap,
        method=args.method,
        seed=args.seed,
        on_progress=_print_progress if printed else None,
    )
    if printed:
        print("\n".join([str(selection), *(f"  {line}" for line in selection.done)]))
    if args.json:
        write_json(args.json, json.dumps(as_json(selection)))
    return 0 if selection.feasible else 1


def _print_progress(progress: Progress) -> None:
    gap = f"{progress.gap:9.4%}" if math.isfinite(progress.gap) else f"{'-':>9}"
    print(f"{progress.seconds:9.2f} {_number(progress.cost)} {_number(progress.bound)} {gap}  {progress.stage}")
    sys.stdout.flush()


def _number(value: float) -> str:
    return f"{value:18.10g}" if math.isfinite(value) else f"{'-':>18}"


def as_json(selection: Selection) -> dict[str, Any]:
    """Numbers that are not known (no feasible choice, no bound) are null."""
    row, size = selection.over
    return {
        "cost": _finite(selection.cost),
        "bound": _finite(selection.bound),
        "gap": _finite(selection.gap),
        "seconds": selection.seconds,
        "method": selection.method,
        "choice": list(selection.choice),
        "feasible": selection.feasible,
        "over": None if row < 0 else {"row": row, "bytes": size},
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
