"""Plans of pipelines against those that others published or would write by hand, all by meshwright's own prices.

    python bench/pipeline_plans.py [--case NAME ...] [--by-hand] [--jobs N]

Alpa's published plans are taken at their best: the devices of each stage are as published, and where the chain is cut,
how each stage is sharded, what it recomputes and the number of micro-batches are left to the solver. By-hand plans are
pure intra-op (`pp=1`) and every dp x tp x pp with cuts left to the solver, which is no worse than equal layers.
Where samples are coupled (batch norm, balance losses) the number of micro-batches is pinned for both: cutting the batch
changes the mathematics. Mixed precision, but for the 70B mixture, whose 16 bytes per parameter are more than 64 V100s
have: all of it in bf16. Ratios are a rival's step over ours: 1.0 or more is no worse. Writes out/pipeline_plans.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from meshwright.capture import Precision, capture
from meshwright.capture.program import Program
from meshwright.cluster import Cluster, load_cluster
from meshwright.errors import MeshwrightError
from meshwright.models.reference import parse_reference
from meshwright.plan import Plan
from meshwright.planner.plan import make_plan

OUT = Path(__file__).parents[1] / "out"
OURS = "ours"
PROGRAMS: dict[str, Program] = {}  # by case; the processes that plan are copies of this one


@dataclass(frozen=True)
class Case:
    model: str
    cluster: str
    batch: int
    alpa: tuple[str, ...]
    pins: tuple[str, ...] = ()
    precision: Precision = "mixed"


CASES = {
    "gpt-2.6b on 8": Case("gpt-2.6b", "p3.16xlarge:1", 128, ("pp=2+2+4",)),
    "gpt-6.7b on 16": Case("gpt-6.7b", "p3.16xlarge:2", 1024, ("pp=8+8", "mesh=2x4")),
    "gpt-39b on 64": Case("gpt-39b", "p3.16xlarge:8", 1024, ("pp=" + "+".join(["4"] * 16),)),
    "moe-70b on 64": Case(
        "moe-70b", "p3.16xlarge:8", 1024, ("pp=" + "+".join(["8"] * 8),), ("microbatch=128",), "bf16"
    ),
    "wresnet-4b on 16": Case("wresnet-4b", "p3.16xlarge:2", 1536, ("pp=4+4+8",), ("microbatch=48",)),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", action="append", choices=list(CASES), help="only these")
    parser.add_argument("--by-hand", action="store_true", help="every dp x tp x pp as well")
    parser.add_argument("--jobs", type=int, default=1, help="so many plans are made at a time, each in its process")
    args = parser.parse_args()
    for name in args.case or list(CASES):
        case = CASES[name]
        PROGRAMS[name] = capture(*parse_reference(case.model).meta(case.batch), precision=case.precision)
    with ProcessPoolExecutor(args.jobs, mp_context=get_context("fork")) as pool:
        asked = [begin(pool, name, args.by_hand) for name in PROGRAMS]
        rows = [row for name, plans in zip(PROGRAMS, asked, strict=True) for row in compare(name, plans)]
    OUT.mkdir(exist_ok=True)
    (OUT / "pipeline_plans.json").write_text(json.dumps(rows, indent=1))
    return 0 if all(row["ratio"] is None or row["ratio"] >= 1.0 - 1e-9 for row in rows) else 1


def begin(pool: Executor, name: str, by_hand: bool) -> dict[str, Future[dict[str, Any]]]:
    """Asks for our plan and for those of all rivals."""
    cluster = load_cluster(CASES[name].cluster)
    rivals = {OURS: (), "Alpa's stages": CASES[name].alpa, "one stage": ("pp=1",)}
    if by_hand:
        rivals |= {f"dp={d} tp={t} pp={p}": _cube_pins(d, t, p) for d, t, p in _cubes(cluster)}
    return {rival: pool.submit(planned, name, rival, pins) for rival, pins in rivals.items()}


def compare(name: str, plans: dict[str, Future[dict[str, Any]]]) -> list[dict[str, Any]]:
    ours = plans.pop(OURS).result()
    rows = []
    for rival, plan in plans.items():
        theirs = plan.result()
        ratio = theirs["step_s"] / ours["step_s"] if theirs["step_s"] and ours["step_s"] else None
        rows.append({"case": name, "rival": rival, "ratio": ratio, "ours": ours, "theirs": theirs})
        print(json.dumps({"case": name, "rival": rival, "ratio": ratio}), flush=True)
    return rows


def _cubes(cluster: Cluster) -> list[tuple[int, int, int]]:
    total = cluster.device_count
    sizes = [n for n in range(1, total + 1) if total % n == 0]
    return [(d, t, total // d // t) for d in sizes for t in sizes if total % (d * t) == 0 and d * t < total]


def _cube_pins(dp: int, tp: int, pp: int) -> tuple[str, ...]:
    """A stage of `dp * tp` devices has no room for anything else: what is 1 need not be said."""
    return tuple(f"{name}={size}" for name, size in (("dp", dp), ("tp", tp), ("pp", pp)) if size > 1)


def planned(name: str, rival: str, pins: tuple[str, ...]) -> dict[str, Any]:
    case, begun_s = CASES[name], time.process_time()
    found: dict[str, Any]
    try:
        plan = make_plan(PROGRAMS[name], load_cluster(case.cluster), precision=case.precision, pins=(*case.pins, *pins))
        found = _told(plan)
    except MeshwrightError as error:
        found = {"step_s": None, "why": str(error).splitlines()[0]}
    found["cpu_s"] = round(time.process_time() - begun_s, 1)
    print(json.dumps({"case": name, "plan": rival, **found}), flush=True)
    return found


def _told(plan: Plan) -> dict[str, Any]:
    return {
        "step_s": plan.predicted.step_s,
        "gap": plan.predicted.gap,
        "stages": [[len(stage.segments), list(stage.mesh.sizes)] for stage in plan.stages],
        "microbatches": plan.microbatches,
        "schedule": plan.schedule,
        "peak_bytes": plan.predicted.peak_bytes,
    }


if __name__ == "__main__":
    sys.exit(main())
