"""Whether a user who knows better can do better: plans against the same request with pins, all by one price list.

    python bench/plan_quality.py [--request NAME ...] [--simpler-within 0] [--effort default] [--most-pins N]
                                 [--against 93178bc]

For each request the plan without pins, then one for each pin. A pinned plan that is faster is a fault of the search: by
more than 0.1 % with `--simpler-within 0`, by more than 0.6 % otherwise. Also a larger budget must not be slower. With
`--against` the plan that another commit makes is priced by today's prices (`bench/old_prices.py`): ours may be at most
0.5 % slower. Writes out/plan_quality.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from old_prices import Row, priced
from planning import checkout

from meshwright.capture import capture
from meshwright.capture.program import Program
from meshwright.cluster import load_cluster
from meshwright.errors import PlanError
from meshwright.models.reference import parse_reference
from meshwright.plan import Plan
from meshwright.plan.units import parse_bytes
from meshwright.planner.effort import SIMPLER_WITHIN
from meshwright.planner.plan import make_plan

OUT = Path(__file__).parents[1] / "out"
PINS = (
    "tp=2", "tp=4", "tp=8", "zero=1", "zero=2", "zero=3", "pp=1", "pp=2", "pp=4", "pp=8", "microbatch=1",
    "microbatch=2", "microbatch=8", "recompute=full", "recompute=flat", "tp=2 sp=on", "zero=3 microbatch=2",
    "pp=2 schedule=1f1b", "pp=4 tp=2",
)  # fmt: skip
SAME, NEAR, OLDER, ROUNDING = 1e-3, 6e-3, 5e-3, 1e-9


@dataclass(frozen=True, slots=True)
class Request:
    """memory: None is all that a device has."""

    model: str
    batch: int
    cluster: str
    memory: str | None = None
    precision: str = "mixed"


REQUESTS = {
    "gpt2": Request("gpt2", 64, "dgx-h100:1"),
    "gpt2, tight": Request("gpt2", 64, "p3.16xlarge:1", "4GiB"),
    "gpt-1.3b, V100": Request("gpt-1.3b", 64, "p3.16xlarge:1"),
    "8b, 70 GiB": Request("llama3-8b", 64, "dgx-h100:1", "70GiB"),
    "8b, 40 GiB": Request("llama3-8b", 16, "dgx-h100:1", "40GiB"),
    "8b, A100": Request("llama3-8b", 64, "dgx-a100:2"),
    "qwen3": Request("hf:qwen3", 64, "dgx-a100:1"),
    "moe": Request("mixtral-8x7b", 32, "dgx-h100:2"),
    "t5-large": Request("t5-large", 128, "dgx-a100:1"),
    "t5-large, tight": Request("t5-large", 128, "dgx-a100:1", "8GiB"),
    "bert-large": Request("bert-large", 256, "dgx-a100:1"),
    "bert-large, tight": Request("bert-large", 256, "p3.16xlarge:1", "8GiB"),
    "vit-large": Request("vit-large", 256, "dgx-a100:1"),
    "resnet50": Request("resnet50", 256, "p3.16xlarge:1"),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--request", action="append", choices=list(REQUESTS), help="only these")
    parser.add_argument("--simpler-within", type=float, default=SIMPLER_WITHIN)
    parser.add_argument("--effort", default="default")
    parser.add_argument("--most-pins", type=int, default=len(PINS), help="only the first so many")
    parser.add_argument("--against", metavar="COMMIT", help="also plans of this commit, or of a folder")
    args = parser.parse_args()
    rows = []
    with checkout(args.against) as other:
        for name in args.request or REQUESTS:
            rows.append(judge(name, REQUESTS[name], args, other))
            print(json.dumps(rows[-1]), flush=True)
    OUT.mkdir(exist_ok=True)
    (OUT / "plan_quality.json").write_text(json.dumps(rows, indent=1))
    return 0 if all(row["holds"] for row in rows) else 1


def judge(name: str, request: Request, args: argparse.Namespace, other: Path | None) -> dict[str, object]:
    program = capture(*parse_reference(request.model).meta(request.batch), precision=request.precision)
    begin_s = time.process_time()
    plan = planned(program, request, (), args, parse_bytes(request.memory))
    cpu_s = time.process_time() - begin_s
    if plan is None:
        return {"request": name, "holds": False, "why": "nothing fits"}
    allowed = SAME if args.simpler_within == 0 else NEAR
    limit = plan.memory_bytes or plan.stages[0].mesh.device.usable_bytes
    faster: dict[str, float] = {}
    for text in PINS[: args.most_pins]:
        rival = planned(program, request, tuple(text.split()), args, parse_bytes(request.memory))
        if rival is not None and rival.predicted.step_s < plan.predicted.step_s * (1 - ROUNDING):
            faster[text] = 1 - rival.predicted.step_s / plan.predicted.step_s
    roomier = planned(program, request, (), args, int(1.2 * limit))
    slower = roomier.predicted.step_s / plan.predicted.step_s - 1 if roomier else 0.0
    older = older_plan(request, other) if other else None
    older_s = older.new_step_s if older and older.fits else None
    behind = plan.predicted.step_s / older_s - 1 if older_s else 0.0
    judged = (
        older is None or not older.why
    )  # a plan that does not fit any more is judged, one that can not be priced is not
    return {
        "request": name,
        "older": {"step_s": older_s, "slower_than_it_by": behind, "why": older.why} if older else None,
        "step_s": plan.predicted.step_s,
        "gap": plan.predicted.gap,
        "cpu_s": round(cpu_s, 2),
        "faster": faster,
        "more_memory_slower_by": max(0.0, slower),
        "holds": max(faster.values(), default=0.0) <= allowed and slower <= allowed and behind <= OLDER and judged,
    }


def older_plan(request: Request, place: Path) -> Row:
    """The plan that the code at `place` makes, by today's prices."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "plan.json"
        command = [sys.executable, "-m", "meshwright", "plan", request.model, "--global-batch", str(request.batch)]
        command += ["--cluster", request.cluster, "--precision", request.precision, "-o", str(file)]
        command += ["--memory", request.memory] if request.memory else []
        run = subprocess.run(
            command, cwd=folder, env=os.environ | {"PYTHONPATH": f"{place}:{os.environ.get('PYTHONPATH', '')}"},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        return priced(file) if file.exists() else Row("plan", why=run.stderr.strip()[-200:])


def planned(
    program: Program, request: Request, pins: tuple[str, ...], args: argparse.Namespace, memory: int | None
) -> Plan | None:
    try:
        return make_plan(
            program,
            load_cluster(request.cluster),
            memory_bytes=memory,
            precision=request.precision,
            pins=pins,
            simpler_within=args.simpler_within,
            effort=args.effort,
        )
    except PlanError:
        return None  # the pin cannot be had there, or does not fit


if __name__ == "__main__":
    sys.exit(main())
