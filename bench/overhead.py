"""The same strategy in both systems: our DDP plan against torch DDP, our ZeRO-3 plan against FSDP2, on gloo ranks.

    python bench/overhead.py [--ranks 2 4] [--repeats 5] [--steps 3] | --gpu

Every rank builds all four and steps each in turn; repeats are interleaved and medians taken. A ratio is the rival's
time over ours: 1.00 is equal, more is better. CPU seconds (of all ranks) and wall seconds are both shown: on a machine
whose cores are shared, only the first mean much. All use AdamW, fused. Writes out/overhead.json.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

MODEL = "gpt?layers=4&hidden=512&heads=8&ffn=2048&vocab=1024&seq=128"
BATCH = 8
PAIRS = {"DDP": ("ours, dp zero=0", "torch DDP"), "ZeRO-3": ("ours, dp zero=3", "FSDP2")}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3, help="steps per repeat")
    parser.add_argument("--gpu", nargs="*", metavar="MODEL,BATCH", help="one rank, compiled (bench/overhead_gpu.py)")
    parser.add_argument("--unit", default="run", help="with --gpu: compile a `segment`, or a `run` of them, as one")
    parser.add_argument("--out", default="out/overhead.json")
    args = parser.parse_args()
    if args.gpu is not None:
        from overhead_gpu import gpu_main

        return gpu_main(args.gpu, args.out, args.repeats, args.unit)
    from meshwright.runtime.job.launch import launch

    os.environ["OMP_NUM_THREADS"] = "1"
    Path(args.out).parent.mkdir(parents=True, exist_ok=True)
    found = {}
    for ranks in args.ranks:
        result = Path(args.out).with_suffix(f".{ranks}.json")
        plans = _plans(ranks, Path(args.out).parent)
        told = json.dumps({"plans": plans, "repeats": args.repeats, "steps": args.steps, "result": str(result)})
        sys.path.insert(0, str(Path(__file__).parent))
        os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
        launch("overhead", ["--rank", told], ranks)
        found[ranks] = json.loads(result.read_text())
        result.unlink()
        for name, (ours, rival) in PAIRS.items():
            mine, theirs = found[ranks][ours], found[ranks][rival]
            ratios = {kind: theirs[kind] / mine[kind] for kind in ("cpu_s", "wall_s")}
            print(
                f"{ranks} ranks {name:<7} ours {mine['cpu_s']:.3f} CPU s {mine['wall_s']:.3f} s a step; "
                f"{rival} {theirs['cpu_s']:.3f}, {theirs['wall_s']:.3f}; "
                f"ratio {ratios['cpu_s']:.3f} by CPU, {ratios['wall_s']:.3f} by clock"
            )
    Path(args.out).write_text(json.dumps({"model": MODEL, "batch": BATCH, "ranks": found}, indent=1) + "\n")
    return 0


def _plans(ranks: int, folder: Path) -> dict[str, str]:
    from meshwright.capture import capture
    from meshwright.cluster import load_cluster
    from meshwright.models.reference import parse_reference
    from meshwright.planner.plan import make_plan

    program = capture(*parse_reference(MODEL).meta(BATCH))
    found = {}
    for zero in (0, 3):
        name = f"ours, dp zero={zero}"
        plan = make_plan(program, load_cluster(f"local:{ranks}"), pins=(f"dp={ranks}", f"zero={zero}"), model=MODEL)
        found[name] = str(folder / f"overhead-{ranks}-{zero}.plan.json")
        plan.save(found[name])
    return found


def rank_main(told: dict[str, Any]) -> int:
    import torch
    import torch.distributed as dist

    from meshwright.models.reference import parse_reference
    from meshwright.runtime.job.tether import end_with_parent

    end_with_parent()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    reference = parse_reference(MODEL)
    batch = {name: torch.randint(0, 1024, shape) for name, (shape, _) in reference.shapes(BATCH).items()}
    rows = slice(rank * BATCH // world, (rank + 1) * BATCH // world)
    local = {name: tensor[rows] for name, tensor in batch.items()}
    steps: dict[str, Callable[[], float]] = {}
    for name, path in told["plans"].items():
        steps[name] = _ours(reference, path, local)
    steps["torch DDP"] = _ddp(reference, local)
    steps["FSDP2"] = _fsdp(reference, local)
    losses = {name: [step() for _ in range(2)] for name, step in steps.items()}  # warm; and all compute the same
    timed: dict[str, list[tuple[float, float]]] = {name: [] for name in steps}
    for _ in range(told["repeats"]):
        for name, step in steps.items():
            dist.barrier()
            start, used = time.perf_counter(), time.process_time()
            for _ in range(told["steps"]):
                step()
            spent = torch.tensor([time.process_time() - used, time.perf_counter() - start]) / told["steps"]
            cpu, wall = spent[0].clone(), spent[1].clone()
            dist.all_reduce(cpu)
            dist.all_reduce(wall, dist.ReduceOp.MAX)
            timed[name].append((cpu.item(), wall.item()))
    if rank == 0:
        found = {
            name: {"cpu_s": median(c for c, _ in all_), "wall_s": median(w for _, w in all_), "losses": losses[name]}
            for name, all_ in timed.items()
        }
        Path(told["result"]).write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()
    return 0


def _built(reference: Any) -> Any:
    import torch

    torch.manual_seed(1)
    return reference.build()


def _ours(reference: Any, path: str, local: dict[str, Any]) -> Callable[[], float]:
    import torch

    import meshwright as mw

    trainer = mw.parallelize(_built(reference), mw.Plan.load(path))
    optimizer = torch.optim.AdamW(trainer.parameters(), lr=1e-3, fused=True)

    def step() -> float:
        loss = trainer.step(local)
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return step


def _rival(model: Any, parameters: Any, local: dict[str, Any]) -> Callable[[], float]:
    import torch

    optimizer = torch.optim.AdamW(parameters, lr=1e-3, fused=True)

    def step() -> float:
        loss = model(**local)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return step


def _ddp(reference: Any, local: dict[str, Any]) -> Callable[[], float]:
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(_built(reference))
    return _rival(model, model.parameters(), local)


def _fsdp(reference: Any, local: dict[str, Any]) -> Callable[[], float]:
    from torch.distributed.fsdp import fully_shard

    model = _built(reference)
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    return _rival(model, model.parameters(), local)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        sys.exit(rank_main(json.loads(sys.argv[2])))
    sys.exit(main())
