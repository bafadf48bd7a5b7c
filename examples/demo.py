"""The whole way: how plans differ by memory and by network; then measure this machine, plan a small GPT for four
processes of it, train, compare with one process, save, and go on with two processes.

What it makes stays in a folder: pages, the cluster, plans, checkpoints (default `out/demo`). No GPU is needed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
from pathlib import Path

from meshwright.capture import capture
from meshwright.cli.answer import recipes
from meshwright.cluster import Cluster, load_cluster
from meshwright.explain.describe import describe
from meshwright.explain.words import headline
from meshwright.models.reference import parse_reference
from meshwright.plan import Plan
from meshwright.plan.units import show_bytes, show_seconds
from meshwright.report.layers import weight_bytes
from meshwright.report.page import write_report
from meshwright.runtime.job.launch import launch
from meshwright.runtime.job.worker import Job
from meshwright.solve.baselines import baselines
from meshwright.solve.plan import make_plan

MODEL = "gpt?layers=2&hidden=128&heads=4&ffn=512&vocab=128&seq=64"
BIGGER = "gpt?layers=4&hidden=2048&heads=16&ffn=8192&vocab=32768&seq=1024"
SLOW = """
name = "four-desktops"
backend = "nccl"
[device.h100]
memory = "80GiB"
memory_bandwidth = "3.35TB/s"
peaks = { bfloat16 = "989T", float32 = "67T" }
[level.host]
bandwidth = "450GB/s"
latency = "3us"
[level.network]
bandwidth = "125MB/s"
latency = "50us"
[[host]]
count = 4
device = "h100"
devices = 1
"""
"""Four hosts with a GPU each, joined by a gigabit network."""
BATCH, STEPS, MORE, EVERY, RATE = 64, 24, 8, 12, 3e-3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", default="out/demo", help="where everything goes")
    folder = Path(parser.parse_args().folder)
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)  # of a demo before this one
    folder.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    clock = time.perf_counter()

    _differ(folder)

    print("\n2. detect: what four processes of this machine reach, alone and together")
    machines = {4: _detect(folder / "cluster.toml", 4)}
    print(f"   {machines[4].device_count} devices, measured; written to {folder / 'cluster.toml'}")

    print(f"\n3. capture: {MODEL} becomes a chain of layers; nothing of its size is allocated")
    program = capture(*parse_reference(MODEL).meta(BATCH))
    for segment in program.segments:
        print(f"   {segment.name:<10} {len(program.graph(segment).ops):>3} ops, {len(segment.params):>2} parameters")

    print("\n4. plan: every operator's sharding chosen together")
    plan = make_plan(program, machines[4], model=MODEL, effort="fast")
    print(describe(plan))
    print(recipes(plan, baselines(program, machines[4])))

    print(f"\n5. train: {STEPS} steps on 4 processes, saving every {EVERY}")
    planned = _train(
        plan, folder, "planned", Job("", STEPS, RATE, 0, "", folder=str(folder / "checkpoints"), every=EVERY)
    )

    print(f"\n6. compare: the same {STEPS} steps on 1 process")
    alone = make_plan(program, load_cluster("local:1"), model=MODEL, effort="fast")
    single = _train(alone, folder, "single", Job("", STEPS, RATE, 0, "", quiet=True))
    worst = _difference(planned, single)
    print(f"   loss {planned[0]:.4f} -> {planned[-1]:.4f}; the two runs differ by at most {worst:.1e}, relative")

    print(f"\n7. resume: {MORE} more steps from that checkpoint, on 2 processes, planned anew")
    fewer = make_plan(program, load_cluster("local:2"), model=MODEL, effort="fast")
    job = Job("", STEPS + MORE, RATE, 0, "", folder=str(folder / "checkpoints"), resume="must")
    resumed = _train(fewer, folder, "resumed", job)
    print(f"   loss {resumed[STEPS]:.4f} -> {resumed[-1]:.4f}")

    kept = sorted(path.name for path in (folder / "checkpoints").glob("step-*"))
    print(f"\neverything is in {folder}: cluster.toml; planned.json, single.json, resumed.json (plans);")
    print(f"   checkpoints ({', '.join(kept)}). See why this plan: meshwright explain {folder / 'planned.json'}")
    print(f"done in {time.perf_counter() - clock:.0f} s")
    fell = planned[-1] < planned[0] - 0.5 and resumed[-1] < planned[0] - 0.5
    if worst > 1e-3 or not fell or resumed[:STEPS] != planned:
        raise SystemExit("the demo did not show what it should: see the losses above")


def _differ(folder: Path) -> None:
    """The same model on the same GPUs: another budget, or another network between them, and another plan is best."""
    print(f"1. plans for GPUs that need not be here: {BIGGER}")
    program = capture(*parse_reference(BIGGER).meta(32), precision="mixed")
    slow = folder / "slow.toml"
    slow.write_text(SLOW, encoding="utf-8")
    asked = {"4 GPUs, fast links": ("h100:4", None), "4 GPUs, 4 GiB each": ("h100:4", 4 << 30)}
    asked["4 hosts, slow network"] = (str(slow), None)
    for name, (cluster, memory) in asked.items():
        found = load_cluster(cluster)
        plan = make_plan(
            program, found, model=BIGGER, precision="mixed", memory_bytes=memory, pins=("pp=1",), effort="fast"
        )
        page = folder / f"{name.replace(' ', '-').replace(',', '')}.html"
        write_report(plan, page, program)
        print(f"   {name}: {headline(plan, weight_bytes(program))}")
        print(f"      step {show_seconds(plan.predicted.step_s)}, {show_bytes(plan.predicted.peak_bytes)}; page {page}")


def _detect(path: Path, processes: int) -> Cluster:
    launch("meshwright", ["cluster", "detect", "--backend", "gloo", "--out", str(path)], processes)
    return load_cluster(str(path))


def _train(plan: Plan, folder: Path, name: str, job: Job) -> list[float]:
    """The losses of a run; its plan and its figures stay in the folder."""
    saved, result = folder / f"{name}.json", folder / f"{name}-run.json"
    plan.save(saved)
    told = {**{field: getattr(job, field) for field in job.__slots__}, "plan": str(saved), "result": str(result)}
    launch("meshwright.runtime.job.worker", Job(**told).arguments(), plan.world_size)
    found: list[float] = json.loads(result.read_text())["losses"]
    return found


def _difference(first: list[float], second: list[float]) -> float:
    return max(abs(a - b) / abs(b) for a, b in zip(first, second, strict=True))


if __name__ == "__main__":
    main()
