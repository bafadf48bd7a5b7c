"""Sharding and recomputation solved together, against one after the other, by the same prices.

    python bench/coupling.py --json out/coupling.json            # all cases
    python bench/coupling.py --case 0

Joint: `make_plan` under the budget. The others, each given our exact choice of what to keep once its sharding is found:

- shard first: the fastest sharding with all the memory it wants, then what must be recomputed to fit;
- sweep, Colossal-Auto's way: shardings under several budgets, nothing recomputed, each then recomputing what it must
  under the true one;
- checkpoint first: what to drop is decided on the model as it is, by the seconds that making a value again takes per
  byte (several thresholds, the last of them drops everything but the segments' inputs); then the sharding, at several
  prices of the bytes that are left, over all meshes and numbers of micro-batches.

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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.capture import capture
from meshwright.capture.program import Program
from meshwright.cluster import Cluster, load_cluster
from meshwright.cluster.device_table import GPUS
from meshwright.cluster.topology import Group, Link, Member
from meshwright.errors import PlanError
from meshwright.models.reference import parse_reference
from meshwright.plan import Plan
from meshwright.price.parameter import Setting
from meshwright.solve.assemble import assemble
from meshwright.solve.candidates import allowed_meshes, candidates_on
from meshwright.solve.intra.chain import chain_at, floor_s
from meshwright.solve.intra.frontier import Frontier
from meshwright.solve.intra.segment import SegmentProblem, Solved
from meshwright.solve.intra.walk import walk
from meshwright.solve.joint import refine
from meshwright.solve.plan import make_plan
from meshwright.solve.search import Candidate

GIB = 1 << 30
GPT = "gpt?layers=4&hidden=4096&heads=32&vocab=51200&seq=1024"
LLAMA = "llama?layers=4&hidden=4096&heads=32&ffn=11008&vocab=32000&seq=4096"
CASES = (
    (GPT, 64, "8 A100-SXM-80GB on 100 Gbit/s", 3.0),
    (GPT, 64, "8 A100-SXM-80GB on 400 Gbit/s", 3.0),
    (LLAMA, 16, "8 H100-SXM-80GB on 400 Gbit/s", 4.5),
    (LLAMA, 16, "dgx-a100:1", 4.5),
    ("gpt?layers=4&hidden=2048&heads=16&vocab=51200&seq=8192", 8, "8 A100-SXM-80GB on 100 Gbit/s", 3.0),
    ("gpt?layers=8&hidden=2048&heads=16&vocab=32000&seq=1024", 32, "4 A100-SXM-80GB on 100 Gbit/s", 3.0),
    (GPT, 64, "p3.16xlarge:1", 3.0),
    (LLAMA, 16, "4 H100-SXM-80GB on 200 Gbit/s", 8.0),
)
SWEEP = (8.0, 4.0, 2.0, 1.5, 1.25, 1.0)
"""Budgets of the sweep, in parts of the true one."""

DROPPED = (0.25, 0.5, 0.75, 1.0)
"""Parts of the droppable bytes that a checkpoint-first method drops, those first that are cheapest to make again."""

PRICES = (0.0, 3e-12, 1e-11, 2e-11, 3e-11, 5e-11, 1e-10, 2e-10, 5e-10, 1e-9, 1e-7)


@dataclass(slots=True)
class Dropped(Frontier):
    """A Frontier whose segments do not keep what takes at most `most_s` seconds per byte to make again."""

    most_s: float = 0.0

    def solve(self, index: int, price_per_byte: float) -> Solved:
        problem = self.problem(index)
        key = (id(problem), price_per_byte)
        if key not in self._solved:
            charged = _charged(problem, price_per_byte, self.most_s)
            plan = problem.prepared
            assert plan is not None, "these segments are small"
            found = plan.run(charged.costs)
            self._solved[key] = Solved(problem, charged, self.program.segments[index].graph, found.costs, found)
        return self._solved[key]


def _charged(problem: SegmentProblem, price: float, most_s: float) -> Any:
    costs = problem.problem.costs + price * problem.held
    for node, kept in zip(problem.op_nodes, problem.space.op_kept, strict=True):
        where = slice(problem.problem.offsets[node], problem.problem.offsets[node + 1])
        for part in kept:
            dropped = part.drop_s <= most_s * float(part.bytes.max())
            costs[where] += problem.micro * part.drop_s if dropped else price * part.bytes
    return replace(problem.problem, costs=costs)


def thresholds(frontier: Frontier) -> list[float]:
    """Seconds per byte below which a part of all droppable bytes is dropped, on the model as it is."""
    ratios, sizes = [], []
    for index in range(len(frontier.program.segments)):
        for kept in frontier.problem(index).space.op_kept:
            for part in kept:
                whole = float(part.bytes.max())
                if whole and np.isfinite(part.drop_s):
                    ratios.append(part.drop_s / whole)
                    sizes.append(whole)
    order = np.argsort(ratios)
    share = np.cumsum(np.array(sizes)[order]) / sum(sizes)
    return [float(np.array(ratios)[order][min(len(order) - 1, int(np.searchsorted(share, part)))]) for part in DROPPED]


@dataclass(frozen=True, slots=True)
class Entry:
    """A set of dropped values on a mesh, with what no sharding that fits is faster than, and the price that says so."""

    bound_s: float
    part: float
    candidate: Candidate
    microbatches: int
    price: float


def entries(program: Program, cluster: Cluster, budget: int, axes: int, known_s: float) -> list[Entry]:
    found = []
    setting = Setting("adamw", "bf16")
    for candidate in candidates_on(program, allowed_meshes(cluster, (), axes), (), setting, recompute=True):
        for number in candidate.microbatches:
            base = candidate.frontier(number)
            if floor_s(base) >= known_s:
                break
            for part in DROPPED:
                frontier = dropping(base, part)
                bounds = [(walk(frontier, price)[0] - price * budget, price) for price in PRICES]
                if max(bounds)[0] < known_s:
                    found.append(Entry(max(bounds)[0], part, candidate, number, max(bounds)[1]))
    return sorted(found, key=lambda entry: entry.bound_s)


def checkpoint_first(
    program: Program, cluster: Cluster, budget: int, axes: int, known_s: float
) -> Iterator[tuple[str, Plan]]:
    """Plans of the method that fit; what cannot be faster than `known_s`, or than one before it, is left out."""
    for entry in entries(program, cluster, budget, axes, known_s):
        if entry.bound_s >= known_s:
            return
        frontier = dropping(entry.candidate.frontier(entry.microbatches), entry.part)
        for price in (price for price in PRICES if price >= entry.price):
            chain = chain_at(frontier, price)
            if chain.seconds >= known_s:
                break
            found = refine(assemble(program, cluster, chain, frontier), program, budget)
            if found is not None:
                yield f"checkpoint first, {entry.part:.0%} dropped", found
                known_s = min(known_s, found.predicted.step_s)
                break


def dropping(base: Frontier, part: float) -> Dropped:
    most_s = dict(zip(DROPPED, thresholds(base), strict=True))[part]
    return Dropped(base.program, base.mesh, base.pins, base.setting, True, base.skips, most_s=most_s)


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
    shardings = {"shard first": _planned(program, cluster, None, axes, recompute=False)}
    for part in SWEEP:
        shardings[f"sweep {part:g}"] = _planned(program, cluster, int(part * budget), axes, recompute=False)
    refined = {name: refine(plan, program, budget) for name, plan in shardings.items() if plan is not None}
    seconds = {name: plan.predicted.step_s for name, plan in refined.items() if plan is not None}
    known_s = min(seconds.values(), default=float("inf"))
    print(f"# shard first and sweep: {known_s:.4f} s, {time.process_time() - before:.0f} CPU s", flush=True)
    for name, plan in checkpoint_first(program, cluster, budget, axes, known_s):
        seconds[name] = min(seconds.get(name, float("inf")), plan.predicted.step_s)
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
        "faster": best / found - 1,
        "gap": joint.predicted.gap if joint else None,
        "joint_cpu_s": joint_cpu_s,
    }


def _described(plan: Plan | None) -> str:
    if plan is None:
        return "none"
    again = sum(bool(plan.choice(index).recompute) for index in range(len(plan.segments)))
    mesh = "x".join(map(str, plan.mesh.sizes))
    return f"{mesh}, {plan.microbatches} micro-batches, {again} of {len(plan.segments)} segments recompute"


def _planned(program: Program, cluster: Cluster, budget: int | None, axes: int, recompute: bool) -> Plan | None:
    try:
        return make_plan(
            program,
            cluster,
            memory_bytes=budget,
            precision="bf16",
            pins=("pp=1",),
            max_axes=axes,
            recompute=recompute,
        )
    except PlanError:
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", type=int, action="append", help="its number; all unless given")
    parser.add_argument("--axes", type=int, default=2, help="of the meshes")
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
