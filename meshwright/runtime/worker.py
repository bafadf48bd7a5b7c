"""One rank of `meshwright train`: build the model, parallelize it, step, report on rank 0."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from meshwright.errors import MeshwrightError, RunError
from meshwright.models.reference import parse_reference
from meshwright.plan import Plan
from meshwright.runtime.data import built_in_batch
from meshwright.runtime.launch import end_with_parent
from meshwright.runtime.trainer import parallelize


def make_optimizer(name: str, parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.Optimizer:
    """The optimizer that was planned for."""
    if name == "adamw":
        return torch.optim.AdamW(parameters, lr=lr)
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9 if name == "momentum" else 0.0)


@dataclass(frozen=True, slots=True)
class Job:
    """What a rank is told: a plan file, how long, how fast, and where rank 0 writes the losses."""

    plan: str
    steps: int
    lr: float
    seed: int
    result: str
    quiet: bool = False

    def arguments(self) -> list[str]:
        return [json.dumps(asdict(self))]


def train(job: Job) -> list[float]:
    plan = Plan.load(job.plan)
    reference = parse_reference(plan.model)
    settings = dict(reference.settings)
    torch.manual_seed(job.seed)
    trainer = parallelize(reference.build(), plan)
    optimizer = make_optimizer(plan.optimizer, trainer.parameters(), job.lr)
    losses: list[float] = []
    start_s = time.perf_counter()
    for step in range(job.steps):
        batch = built_in_batch(plan, settings.get("vocab", 0), settings.get("classes", 0), job.seed, step)
        local = {name: batch[name][where] for name, where in trainer.data_slice().items()}
        losses.append(trainer.step(local).item())
        optimizer.step()
        optimizer.zero_grad()
        if losses[-1] != losses[-1]:
            raise RunError(f"the loss is NaN at step {step}", "a finite loss", "lower --lr")
        if dist.get_rank() == 0 and not job.quiet and (step % max(1, job.steps // 10) == 0 or step == job.steps - 1):
            rate = plan.batch * (step + 1) / (time.perf_counter() - start_s)
            print(f"step {step:>4}  loss {losses[-1]:.4f}  {rate:,.1f} samples/s", flush=True)
    return losses


def main() -> int:
    job = Job(**json.loads(sys.argv[1]))
    end_with_parent()
    try:
        losses = train(job)
    except MeshwrightError as error:
        rank = dist.get_rank() if dist.is_initialized() else 0
        if rank == 0:
            print(f"meshwright: {error}", file=sys.stderr, flush=True)
        return 2
    if dist.get_rank() == 0:
        Path(job.result).write_text(json.dumps(losses))
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
