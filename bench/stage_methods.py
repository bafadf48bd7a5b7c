"""The survey's searchers on the stages of pipelines against the dynamic programme, in one table.

    python bench/stage_methods.py [--instances N] [--model NAME] [--skip-model]

Random instances have 8 to 16 segments on 4 to 8 devices of one or two types, with memory that binds, crossings that
differ and two points a stage; each method may simulate `BUDGET` pipelines. Ratios are a method's step over the
best that any of them found; 1.0 is the best. The model is planned with each method in place of the programme, all else
alike. Writes out/stage_methods.json.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Hashable
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

from stage_rows import ListedProblem, solve
from stage_searchers import METHODS as SEARCHERS
from stage_searchers import propose

from meshwright.capture import capture
from meshwright.cluster import load_cluster
from meshwright.errors import PlanError
from meshwright.models.reference import parse_reference
from meshwright.planner.plan import make_plan
from meshwright.planner.stages.problem import Crossing, MeshClass, StagePoint
from meshwright.planner.stages.search import solve_stages
from meshwright.simulate import SegmentCost, Transfer

OUT = Path(__file__).parents[1] / "out"
BUDGET = 24
METHODS = ("auto", *SEARCHERS)
"""`auto`: the dynamic programme."""


def proposals(method: str, seed: int = 0) -> dict[str, Any]:
    """What `solve_stages` takes to simulate the pipelines of a method."""
    return {} if method == "auto" else {"propose": partial(propose, method, seed=seed)}


def instance(seed: int) -> ListedProblem:
    dice = random.Random(seed)
    segments, types = dice.randint(8, 16), dice.choice((1, 1, 2))
    speed = [dice.uniform(0.6, 1.6) for _ in range(types)]
    sizes = (1, 2, 4) if types == 1 else (1, 2)
    devices = (dice.randint(4, 8),) if types == 1 else (dice.randint(2, 4), dice.randint(2, 4))
    work = [dice.uniform(0.5, 2.0) for _ in range(segments)]
    weights, kept = ([dice.randint(2, 30) for _ in range(segments)] for _ in range(2))
    memory = [int((sum(weights) + 3 * sum(kept)) / sum(devices) * dice.uniform(1.2, 2.5)) for _ in range(types)]
    meshes = tuple(
        MeshClass(f"{size} of {kind}", tuple(size if i == kind else 0 for i in range(types)), memory[kind])
        for kind in range(types)
        for size in sizes
    )
    lost = [dice.uniform(0.75, 1.0) for _ in meshes]
    wire = {pair: dice.uniform(0.0, 0.4) for pair in product(range(len(meshes)), repeat=2)}

    def points(first: int, end: int, mesh: int, count: int) -> list[StagePoint]:
        made = meshes[mesh]
        kind = next(i for i, have in enumerate(made.devices) if have)
        seconds = sum(work[first:end]) / speed[kind] / made.ranks ** lost[mesh] / count
        static, held = sum(weights[first:end]) // made.ranks, sum(kept[first:end]) / made.ranks
        return [
            StagePoint(
                SegmentCost(seconds, seconds * (1 + again), seconds, step_s=0.05, static_bytes=static,
                            resident_bytes=int(held * part / count * 4))
            )
            for again, part in ((0.0, 1.0), (0.5, 0.5), (1.0, 0.1))
        ]  # fmt: skip

    def crossing(end: int, source: int, leave: Hashable, target: int, enter: Hashable, count: int) -> Crossing:
        seconds = wire[source, target] * (1 + 0.1 * (end % 3)) / count
        return Crossing(Transfer(seconds, 0.0, 1, 1), Transfer(seconds, 0.0, 1, 1))

    schedules = "1f1b", "zero-bubble"
    return ListedProblem(segments, meshes, devices, (4, 16), schedules, points=points, crossing=crossing)


def random_rows(count: int) -> list[dict[str, Any]]:
    steps: dict[str, list[float]] = {method: [] for method in METHODS}
    cpu: dict[str, list[float]] = {method: [] for method in METHODS}
    proven = done = 0
    for seed in range(count):
        problem, found = instance(seed), {}
        for method in METHODS:
            begun_s = time.process_time()
            try:
                answer = solve(problem, BUDGET, **proposals(method, seed))
            except PlanError:
                answer = None
            cpu[method].append(time.process_time() - begun_s)
            found[method] = answer.step_s if answer else float("inf")
            proven += method == "auto" and answer is not None and answer.proven
        best_s = min(found.values())
        if best_s < float("inf"):
            done += 1
            for method, step_s in found.items():
                steps[method].append(step_s / best_s)
    print(f"{done} random instances, {proven} proven by the programme; ratio to the best found")
    rows = []
    for method in METHODS:
        ratios = sorted(steps[method])
        rows.append(
            {
                "method": method,
                "best": sum(ratio <= 1 + 1e-9 for ratio in ratios),
                "median": median(ratios),
                "worst": ratios[-1],
                "median_cpu_ms": 1e3 * median(cpu[method]),
            }
        )
        row = rows[-1]
        text = f"  {method:<10} best in {row['best']:>3}, median {row['median']:.4f}, worst {row['worst']:.3f}"
        print(f"{text}, {row['median_cpu_ms']:.0f} CPU ms", flush=True)
    return rows


def model_rows(model: str, cluster: str, batch: int) -> list[dict[str, Any]]:
    program = capture(*parse_reference(model).meta(batch), precision="mixed")
    rows = []
    print(f"{model} on {cluster}, batch {batch}: pipelines alone")
    for method in METHODS:
        begun_s = time.process_time()
        with patch("meshwright.planner.pipeline.search.solve_stages", partial(solve_stages, **proposals(method))):
            plan = make_plan(program, load_cluster(cluster), precision="mixed", pins=("schedule=1f1b",))
        rows.append({"method": method, "step_s": plan.predicted.step_s, "cpu_s": time.process_time() - begun_s})
        sizes = "+".join(str(group[0].mesh.world_size) for group in plan.groups)
        text = f"  {method:<10} {plan.predicted.step_s:.4f} s, stages of {sizes}, {plan.microbatches} micro-batches"
        print(f"{text}, {rows[-1]['cpu_s']:.1f} CPU s", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instances", type=int, default=100)
    parser.add_argument("--model", default="gpt-2.6b")
    parser.add_argument("--cluster", default="p3.16xlarge:1")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--skip-model", action="store_true")
    args = parser.parse_args()
    found = {"random": random_rows(args.instances)}
    if not args.skip_model:
        found["model"] = model_rows(args.model, args.cluster, args.batch)
    OUT.mkdir(exist_ok=True)
    (OUT / "stage_methods.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
