"""What each rank of bench/shaped_pipelines.py does: it takes the pace, then steps in every way in turn."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

OURS = {"plan": (), "one stage": ("pp=1",)}
"""Plans that are asked for, and their pins."""

Step = Callable[[], float]


def pace_main(told: dict[str, Any]) -> int:
    """Median over ranks of the yardstick's step, all at once, over what the shipped profile says; `both_ways`; and
    `reached_inside`."""
    import torch
    import torch.distributed as dist
    from pace import SMALL_BATCH, both_ways, yardstick
    from reached import reached_inside

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    share = both_ways(dist.get_world_size() - 1, told["mbit"])
    step = yardstick(told["model"], time.process_time, SMALL_BATCH)
    spent = [step() for _ in range(8)]
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, median(spent[2:]))
    inside = reached_inside(told["hosts"], told["ranks"]) if told["ranks"] > 1 else {}
    if dist.get_rank() == 0:
        (Path(told["folder"]) / "pace.json").write_text(json.dumps([median(every), share, inside]))
    dist.destroy_process_group()
    return 0


def measured_main(told: dict[str, Any]) -> int:
    import torch
    import torch.distributed as dist
    from pace import SMALL_BATCH, both_ways, yardstick

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    shares = [both_ways(dist.get_world_size() - 1, told["mbit"])]
    steps, counted = _steps(told)
    losses = {name: float(step()) for name, step in steps.items()}
    timed: dict[str, list[float]] = {name: [] for name in steps}
    cpu: dict[str, list[float]] = {name: [] for name in steps}
    pace, paces = yardstick(told["model"], time.process_time, SMALL_BATCH), []
    pace()
    for _ in range(told["repeats"]):
        dist.barrier()
        paces.append(median([pace() for _ in range(3)]))
        for name, step in steps.items():
            dist.barrier()
            start, worked = time.perf_counter(), time.process_time()
            step()
            worked = time.process_time() - worked
            spent = torch.tensor([time.perf_counter() - start, worked])
            dist.all_reduce(spent[:1], dist.ReduceOp.MAX)
            dist.all_reduce(spent[1:])
            timed[name].append(spent[0].item())
            cpu[name].append(spent[1].item())
    shares.append(both_ways(dist.get_world_size() - 1, told["mbit"]))
    peaks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(peaks, (counted(), losses, median(paces)))
    if dist.get_rank() == 0:
        known = [each for _, found, _ in peaks for name, each in found.items() if each == each]
        assert max(known) - min(known) <= 1e-3 * max(known), f"first losses differ: {peaks}"
        found = {
            "seconds": {name: median(values) for name, values in timed.items()},
            "all": timed,
            "cpu_s": {name: median(values) for name, values in cpu.items()},
            "peak_bytes": [peak for peak, _, _ in peaks],
            "pace": median(each for _, _, each in peaks),
            "share": sum(shares) / 2,
        }
        (Path(told["folder"]) / "measured.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()
    return 0


def _steps(told: dict[str, Any]) -> tuple[dict[str, Step], Callable[[], int]]:
    """Ways to run a step, which return the loss (nan where a rank does not know it); the plan's bytes, counted."""
    import torch
    from torch_pipelines import stepping, torch_pipeline

    import meshwright as mw
    from meshwright.models.reference import parse_reference

    reference = parse_reference(told["model"])
    torch.manual_seed(0)
    whole = {name: torch.randint(0, 256, shape) for name, (shape, _) in reference.shapes(told["batch"]).items()}
    steps: dict[str, Step] = {}
    plans = {name: mw.Plan.load(Path(told["folder"]) / f"{name}.plan.json") for name in OURS}
    trainers, optimizers = {}, {}
    for name, plan in plans.items():
        torch.manual_seed(0)
        trainers[name] = trainer = mw.parallelize(reference.build(), plan)
        steps[name], optimizers[name] = stepping(
            list(trainer.parameters()), lambda trainer=trainer: trainer.step(whole, global_batch=True).item()
        )
    if len(plans["plan"].stages) > 1:
        for schedule in ("GPipe", "1F1B"):
            if found := torch_pipeline(reference, plans["plan"], whole, schedule):
                steps[f"torch {schedule}"] = found

    def counted() -> int:
        trainer = trainers["plan"]
        states = [t for state in optimizers["plan"].state.values() for t in state.values() if t.ndim]
        trainer.count_bytes()
        steps["plan"]()
        return trainer.peak_bytes + sum(_local(t).nbytes for t in states)

    return steps, counted


def _local(tensor: Any) -> Any:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor
