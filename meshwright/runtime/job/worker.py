"""One rank of `meshwright train`: build the model, parallelize it, step, save, report on rank 0."""

from __future__ import annotations

import json
import math
import signal
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from meshwright.errors import RunError
from meshwright.models.reference import Reference, parse_reference
from meshwright.plan import Plan
from meshwright.runtime.fail import tell
from meshwright.runtime.job.data import BuiltIn
from meshwright.runtime.job.progress import Progress
from meshwright.runtime.job.tether import STOPS
from meshwright.runtime.state.checkpoint import load, save
from meshwright.runtime.state.loader import Loader, loader
from meshwright.runtime.step.ranges import ranges_of
from meshwright.runtime.trainer import Trainer, parallelize
from meshwright.runtime.weights.optimizers import make_optimizer


@dataclass(frozen=True, slots=True)
class Job:
    """What a rank is told: a plan file, how long, how fast, what to read, where to save, where rank 0 reports.
    keep: how many checkpoints, the newest; 0 keeps all."""

    plan: str
    steps: int
    lr: float
    seed: int
    result: str
    quiet: bool = False
    folder: str | None = None
    every: int | None = None
    resume: bool = False
    data: str | None = None
    go_on_at_nan: bool = False
    timeout_s: float | None = None
    keep: int = 3

    def arguments(self) -> list[str]:
        return [json.dumps(asdict(self))]


def train(job: Job) -> dict[str, Any]:
    """The whole run; what it returns is the same on every rank."""
    plan = Plan.load(job.plan)
    reference = parse_reference(plan.model)
    trainer = _trainer(reference, plan, job)
    optimizer = make_optimizer(plan.optimizer, trainer.parameters(), job.lr)
    samples = BuiltIn(plan, dict(reference.settings), job.data, ranges_of(trainer.program))
    data = loader(samples, plan, seed=job.seed)
    losses: list[float] = []
    if job.resume:
        assert job.folder is not None
        found = load(trainer, optimizer, job.folder, loader=data, skip_damaged=True)
        losses = found.extra.get("losses", [])
        if dist.get_rank() == 0:
            for fault in found.passed_over:
                print(f"passed over: {fault}", file=sys.stderr, flush=True)
        if dist.get_rank() == 0 and not job.quiet:
            print(f"going on from {found.path}, step {found.step}", flush=True)
    progress = Progress(trainer, job.steps, job.quiet, job.folder)
    stopped = _loop(trainer, optimizer, data, losses, progress, job)
    figures = progress.figures()
    where = None
    if job.folder:
        where = str(save(trainer, optimizer, job.folder, loader=data, extra={"losses": losses}, keep=job.keep))
    return asdict(figures) | {"losses": losses, "stopped": stopped, "saved": where}


def _trainer(reference: Reference, plan: Plan, job: Job) -> Trainer:
    """Weights are made piece by piece; where a model cannot be built that way, whole, from the same seed."""
    loss = reference.family.loss
    try:
        return parallelize(reference.build, plan, loss, seed=job.seed, timeout_s=job.timeout_s)
    except RunError as error:
        if "meta device" not in f"{error.given} {error.expected}":
            raise
    torch.manual_seed(job.seed)
    return parallelize(reference.build(), plan, loss, seed=job.seed, timeout_s=job.timeout_s)


def _loop(
    trainer: Trainer,
    optimizer: torch.optim.Optimizer,
    data: Loader,
    losses: list[float],
    progress: Progress,
    job: Job,
) -> bool:
    """Whether it was stopped from outside before its last step."""
    stop = Stop(trainer)
    while trainer.steps < job.steps:
        for batch in data:
            loss = trainer.step(batch).item()
            if not math.isfinite(loss) and not job.go_on_at_nan:
                raise RunError(
                    f"the loss is {loss} at step {trainer.steps}", "a finite loss", "lower --lr, or pass --go-on-at-nan"
                )
            losses.append(loss)
            optimizer.step()
            optimizer.zero_grad()
            progress.step(loss)
            if trainer.steps >= job.steps:
                return False
            if stop.agreed():
                return True
            if job.folder and job.every and trainer.steps % job.every == 0 and trainer.steps < job.steps:
                save(trainer, optimizer, job.folder, loader=data, extra={"losses": losses}, keep=job.keep)
    return False


class Stop:
    """Ctrl-C or a polite end, which every rank acts on after the same step."""

    def __init__(self, trainer: Trainer) -> None:
        self.watch, self.asked = trainer.watch, torch.zeros((), device=trainer.device)
        for number in STOPS:
            if signal.getsignal(number) != signal.SIG_IGN or number != signal.SIGHUP:  # `nohup` keeps that away
                signal.signal(number, self._ask)

    def _ask(self, number: int, frame: object) -> None:
        self.asked.fill_(1)
        for each in STOPS:
            signal.signal(each, signal.SIG_DFL)  # a second one ends it at once

    def agreed(self) -> bool:
        found = self.asked.clone()
        with self.watch.during("agree to go on"):
            dist.all_reduce(found, dist.ReduceOp.MAX)
        return bool(found.item())


def main() -> int:
    job = Job(**json.loads(sys.argv[1]))
    try:
        found = train(job)
        if dist.get_rank() == 0:
            Path(job.result).write_text(json.dumps(found))
        dist.barrier()
    except Exception as error:  # one message, whatever it was; the launcher ends the other ranks
        return tell(error)
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
