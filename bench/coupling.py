"""Sharding and recomputation solved together, against one after the other, by the same prices.

    python bench/coupling.py --json out/coupling.json            # all cases
    python bench/coupling.py --case 0

Joint: `make_plan` under the budget. The others:

- shard first: the fastest sharding with all the memory it wants, be it more than the device has, then what must be
  recomputed to fit, chosen exactly; in a nested order where it does not fit otherwise;
- sweep, Colossal-Auto's way: shardings under budgets from all that to the true one, each a tenth larger than the
  next, nothing recomputed; each then recomputes what it must under the true one. Twice: with the number of
  micro-batches chosen with the sharding, and with the batch in one piece, as there;
- checkpoint first: what to drop is decided on the model as it is, by the seconds that making a value again takes per
  byte (every threshold: the first drops next to nothing, the last everything but the segments' inputs); then the
  sharding, over all meshes and numbers of micro-batches, by the joint search itself with what is dropped decided.

All without pipelines. Cases: model, batch, cluster, GiB a device.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":  # the folder of this file would hide modules of the standard library: it has a `select`
    sys.path[0] = sys.path[0].rpartition("/")[0]

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.coupling_checkpoint import checkpoint_first
from meshwright.capture import capture
from meshwright.capture.program import Program
from meshwright.cluster import Cluster, load_cluster
from meshwright.cluster.device_table import GPUS
from meshwright.cluster.tree import Group, Link, Member
from meshwright.errors import PlanError
from meshwright.models.reference import parse_reference
from meshwright.plan import Plan
from meshwright.planner.memory.nested_sharded import refine_nested
from meshwright.planner.memory.options import RematOptions
from meshwright.planner.memory.refine import refine
from meshwright.planner.plan import make_plan

GIB = 1 << 30
GPT = "gpt?layers=24&hidden=2048&heads=16&vocab=32000&seq=2048"
WIDE = "gpt?layers=32&hidden=4096&heads=32&vocab=51200&seq=1024"
LLAMA = "llama?layers=32&hidden=4096&heads=32&kv_heads=8&ffn=14336&vocab=32000&seq=2048"
LONG = LLAMA.replace("seq=2048", "seq=32768")
LONGER = LLAMA.replace("seq=2048", "seq=65536")
LARGER = "llama?layers=40&hidden=5120&heads=40&kv_heads=8&ffn=13824&vocab=32000&seq=32768"
CASES = (
    (LONG, 8, "8 H100-SXM-80GB on 400 Gbit/s", 28.0),
    (LONG, 8, "8 H100-SXM-80GB on 200 Gbit/s", 28.0),
    (LONG, 8, "8 H100-SXM-80GB on 100 Gbit/s", 28.0),
    (LONG, 8, "8 H100-SXM-80GB on 400 Gbit/s", 27.0),
    (LONGER, 8, "8 H100-SXM-80GB on 400 Gbit/s", 48.0),
    (LARGER, 16, "16 H100-SXM-80GB on 400 Gbit/s", 36.0),
    (LONG, 8, "8 H100-SXM-80GB on 200 Gbit/s", 30.0),
    (LONG, 8, "8 H100-SXM-80GB on 400 Gbit/s", 26.0),
    (LLAMA, 480, "8 H100-SXM-80GB on 600 Gbit/s", 22.0),
    (LLAMA, 480, "8 H100-SXM-80GB on 400 Gbit/s", 26.0),
    (GPT, 256, "4 H100-SXM-80GB on 100 Gbit/s", 4.5),
    (GPT, 256, "4 H100-SXM-80GB on 50 Gbit/s", 5.0),
    (WIDE, 1024, "8 A100-SXM-80GB on 200 Gbit/s", 10.0),
)
SWEEP = tuple(1.1**power for power in range(56, -1, -1))
"""Budgets of the sweep, in parts of the true one; those above what the fastest sharding takes are left out."""

WHOLE = ("microbatch=1",)
SLOWEST = 1.5
"""Plans of checkpointing first that take so much longer than the joint one are not looked for."""


def cluster_of(text: str) -> Cluster:
    """A preset, or `8 A100-SXM-80GB on 100 Gbit/s`: so many devices, each with its own card on one network."""
    if " on " not in text:
        return load_cluster(text)
    count, gpu, _, gigabits, _ = text.split()
    network = Group("pod", Link(2e-5, float(gigabits) * 1e9 / 8), (Member(gpu, int(count)),))
    return Cluster(text, "nccl", (GPUS[gpu].device,), network, 8.4e-6, ())


def run(model: str, batch: int, cluster_name: str, budget_gib: float, axes: int) -> dict[str, Any]:
    program = capture(*parse_reference(model).meta(batch), precision="bf16")
    cluster, budget = cluster_of(cluster_name), int(budget_gib * GIB)
    before = time.process_time()
    joint = _planned(program, cluster, budget, axes, recompute=True)
    joint_cpu_s = time.process_time() - before
    print(f"# joint {joint.predicted.step_s if joint else 0:.4f} s, {joint_cpu_s:.0f} CPU s", flush=True)
    seconds = dict(shard_first(program, cluster, budget, axes))
    incumbent_s = min(seconds.values(), default=float("inf"))
    print(f"# shard first and sweep: {incumbent_s:.4f} s, {time.process_time() - before:.0f} CPU s", flush=True)
    incumbent_s = min(incumbent_s, SLOWEST * joint.predicted.step_s if joint else incumbent_s)
    for name, found_s in checkpoint_first(program, cluster, budget, axes, incumbent_s):
        print(f"# {name}: {found_s:.4f} s, {time.process_time() - before:.0f} CPU s", flush=True)
        seconds[name] = min(seconds.get(name, float("inf")), found_s)
    best = min(seconds.values(), default=float("inf"))
    found = joint.predicted.step_s if joint else float("inf")
    return {
        "model": model,
        "batch": batch,
        "cluster": cluster_name,
        "budget_gib": budget_gib,
        "axes": axes,
        "joint_s": found,
        "joint": _described(joint),
        "apart_s": seconds,
        "best_apart_s": best,
        "faster": best / found - 1 if seconds else None,
        "gap": joint.predicted.gap if joint else None,
        "joint_cpu_s": joint_cpu_s,
    }


def shard_first(program: Program, cluster: Cluster, budget: int, axes: int) -> Iterator[tuple[str, float]]:
    """Seconds of the fastest sharding, and of those under the sweep's budgets, each recomputing what it must."""
    roomy = replace(cluster, devices=tuple(replace(one, memory_bytes=1 << 50) for one in cluster.devices))
    for pins, name in (((), ""), (WHOLE, ", one piece")):
        plan = _planned(program, roomy, None, axes, recompute=False, pins=pins)
        yield from _fitted(f"shard first{name}", plan, program, budget)
        for part in SWEEP if plan else ():
            if plan is not None and plan.predicted.peak_bytes <= part * budget:
                continue  # the same again
            plan = _planned(program, roomy, int(part * budget), axes, recompute=False, pins=pins)
            if plan is None:
                break
            yield from _fitted(f"sweep {part:.3g}{name}", plan, program, budget)


def _fitted(name: str, plan: Plan | None, program: Program, budget: int) -> Iterator[tuple[str, float]]:
    found = refine(plan, program, budget) if plan else None
    if plan is not None and found is None:
        found = refine_nested(plan, program, RematOptions.of(plan, program), budget)
    print(f"# {name}: {_described(plan)}: {found.predicted.step_s if found else 0:.4f} s", flush=True)
    if found is not None:
        yield name, found.predicted.step_s


def _described(plan: Plan | None) -> str:
    if plan is None:
        return "none"
    again = sum(bool(plan.choice(index).recompute) for index in range(len(plan.segments)))
    mesh = "x".join(map(str, plan.mesh.sizes))
    order = ", nested" if plan.order else ""
    return f"{mesh}, {plan.microbatches} micro-batches, {again} of {len(plan.segments)} segments recompute{order}"


def _planned(
    program: Program, cluster: Cluster, budget: int | None, axes: int, recompute: bool, pins: tuple[str, ...] = ()
) -> Plan | None:
    try:
        return make_plan(
            program,
            cluster,
            memory_bytes=budget,
            precision="bf16",
            pins=("pp=1", *pins),
            max_axes=axes,
            recompute=recompute,
        )
    except PlanError:
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", type=int, action="append", help="its number; all unless given")
    parser.add_argument("--axes", type=int, default=1, help="of the meshes")
    parser.add_argument("--json")
    args = parser.parse_args()
    rows = []
    for number in args.case or range(len(CASES)):
        rows.append(run(*CASES[number], args.axes))
        print(json.dumps(rows[-1]), flush=True)
    if args.json:
        Path(args.json).parent.mkdir(parents=True, exist_ok=True)
        Path(args.json).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
