"""Sharding and recomputation solved together, against one after the other, by the same prices.

    python bench/coupling.py --json out/coupling.json            # all cases
    python bench/coupling.py --case 0

Joint: `make_plan` under the budget. Shard first: the fastest sharding with all the memory it wants, then what must be
recomputed to fit. Sweep (Colossal-Auto's way): shardings under several budgets, nothing recomputed, each then
recomputing what it must under the true one; the best. Checkpoint first: every segment recomputes all but its input, and
the fastest of the sweep's shardings that fits so. All without pipelines. Cases: model, batch, cluster, GiB a device.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":  # the folder of this file would hide modules of the standard library: it has a `select`
    sys.path[0] = sys.path[0].rpartition("/")[0]

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from meshwright.capture import capture
from meshwright.capture.program import Program
from meshwright.cluster import Cluster, load_cluster
from meshwright.errors import PlanError
from meshwright.models.reference import parse_reference
from meshwright.plan import Plan
from meshwright.solve.joint import refine
from meshwright.solve.plan import make_plan
from meshwright.solve.points import Ways

GIB = 1 << 30
CASES = (
    ("gpt-1.3b?layers=6", 64, "dgx-a100:1", 6.0),
    ("llama3-8b?layers=6&seq=4096", 32, "dgx-h100:1", 12.0),
    ("gpt-2.6b?layers=6", 128, "dgx-a100:2", 6.0),
    ("gpt-6.7b?layers=4", 32, "dgx-h100:1", 8.0),
)
SWEEP = (8.0, 4.0, 2.0, 1.5, 1.0)
"""Budgets of the sweep, in parts of the true one."""


def run(model: str, batch: int, cluster_name: str, budget_gib: float) -> dict[str, Any]:
    program = capture(*parse_reference(model).meta(batch), precision="bf16")
    cluster, budget = load_cluster(cluster_name), int(budget_gib * GIB)
    before = time.process_time()
    joint = _planned(program, cluster, budget, recompute=True)
    joint_cpu_s = time.process_time() - before
    shardings = {"shard first": _planned(program, cluster, None, recompute=False)}
    shardings |= {f"sweep {part:g}": _planned(program, cluster, int(part * budget), recompute=False) for part in SWEEP}
    known = {name: plan for name, plan in shardings.items() if plan is not None}
    refined = {name: refine(plan, program, budget) for name, plan in known.items()}
    checkpointed = {f"checkpoint first, {name}": _all_again(plan, program, budget) for name, plan in known.items()}
    seconds = {name: plan.predicted.step_s for name, plan in refined.items() if plan is not None}
    seconds |= {name: step_s for name, step_s in checkpointed.items() if step_s is not None}
    best = min(seconds.values(), default=float("inf"))
    found = joint.predicted.step_s if joint else float("inf")
    return {
        "model": model,
        "batch": batch,
        "cluster": cluster_name,
        "budget_gib": budget_gib,
        "joint_s": found,
        "joint_mesh": str(joint.mesh.sizes) if joint else "",
        "apart_s": seconds,
        "best_apart_s": best,
        "faster": best / found - 1,
        "joint_cpu_s": joint_cpu_s,
    }


def _planned(program: Program, cluster: Cluster, budget: int | None, recompute: bool) -> Plan | None:
    try:
        return make_plan(
            program,
            cluster,
            memory_bytes=budget,
            precision="bf16",
            pins=("pp=1",),
            recompute=recompute,
        )
    except PlanError:
        return None


def _all_again(plan: Plan, program: Program, budget: int) -> float | None:
    """Seconds where every segment keeps its input alone; None where that does not fit either."""
    ways = Ways.of(plan, program)
    least = [min(options, key=lambda kept: kept.resident_bytes) for options in ways.curves.options]
    only = replace(ways, curves=replace(ways.curves, options=tuple((kept,) for kept in least)))
    made = refine_with(only, plan, program, budget)
    return made.predicted.step_s if made else None


def refine_with(ways: Ways, plan: Plan, program: Program, budget: int) -> Plan | None:
    """`refine` with these ways to run the segments."""
    from unittest.mock import patch

    with patch.object(Ways, "of", return_value=ways):
        return refine(plan, program, budget)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", type=int, action="append", help="its number; all unless given")
    parser.add_argument("--json")
    args = parser.parse_args()
    rows = []
    for number in args.case or range(len(CASES)):
        rows.append(run(*CASES[number]))
        print(json.dumps(rows[-1]), flush=True)
    if args.json:
        Path(args.json).parent.mkdir(parents=True, exist_ok=True)
        Path(args.json).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
