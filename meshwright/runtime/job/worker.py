"""One rank of `meshwright train`: build the model, parallelize it, step, save, report on rank 0."""

from __future__ import annotations

import json
import math
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from meshwright.errors import RunError
from meshwright.models.reference import Reference, parse_reference
from meshwright.plan import Plan
from meshwright.runtime.fail import tell
from meshwright.runtime.job.data import BuiltIn, OwnBatch, is_small, samples_of
from meshwright.runtime.job.observe import named_samples
from meshwright.runtime.job.progress import Progress
from meshwright.runtime.job.tether import STOPS
from meshwright.runtime.state.checkpoint import load, save
from meshwright.runtime.state.folder import latest, on_first
from meshwright.runtime.state.loader import Loader, loader
from meshwright.runtime.state.lock import take
from meshwright.runtime.step.ranges import ranges_of
from meshwright.runtime.trainer import Trainer, parallelize
from meshwright.runtime.weights.optimizers import make_optimizer

LR = 1e-3


@dataclass(frozen=True, slots=True)
class Job:
    """What a rank is told: a plan file, how long, how fast, what to read, where to save, where rank 0 reports.
    keep: how many checkpoints, the newest; 0 keeps all. lr, seed: None for those of the run that is gone on with."""

    plan: str
    steps: int
    lr: float | None
    seed: int | None
    result: str
    quiet: bool = False
    folder: str | None = None
    every: int | None = None
    resume: str = ""
    data: str | None = None
    go_on_at_nan: bool = False
    timeout_s: float | None = None
    keep: int = 3
    trust: bool = False

    def arguments(self) -> list[str]:
        return [json.dumps(asdict(self))]


def train(job: Job) -> dict[str, Any]:
    """The whole run; what it returns is the same on every rank."""
    plan = Plan.load(job.plan)
    reference = parse_reference(plan.model)
    trainer = _trainer(reference, plan, job)
    if job.folder:
        folder = Path(job.folder)
        on_first(lambda: take(folder, for_job=True), f"{folder} cannot be written")
    optimizer = make_optimizer(plan.optimizer, trainer.parameters(), job.lr or LR)
    samples = samples_of(plan, reference, job.data, ranges_of(trainer.program))
    data = loader(samples, plan, seed=job.seed or 0)
    goes_on = bool(job.folder) and _resumes(job)
    _say_what(reference, plan, samples, job, goes_on)
    told: dict[str, Any] = {"losses": [], "data": samples.sum(), "batch": plan.batch, "precision": plan.precision}
    if goes_on:
        told["losses"] = _resumed(trainer, optimizer, data, job, told)
    losses: list[float] = told["losses"]
    progress = Progress(trainer, job.steps, job.quiet, job.folder)
    begun = trainer.steps
    stopped = _loop(trainer, optimizer, data, told, progress, job)
    figures = progress.figures()
    where = None
    if job.folder and not (goes_on and trainer.steps == begun):  # what it went on from holds all of it
        where = str(save(trainer, optimizer, job.folder, loader=data, extra=told, keep=job.keep))
    return asdict(figures) | {"losses": losses, "stopped": stopped, "saved": where}


def _say_what(reference: Reference, plan: Plan, samples: BuiltIn | OwnBatch, job: Job, goes_on: bool) -> None:
    """What is trained, from which weights, on which data: a run like this is a trial, not a training of one's own."""
    if dist.get_rank() == 0 and not job.quiet:
        given = "" if job.data else "; another text: --data FILE; data of your own: mw.loader (docs/running.md)"
        print(f"data: {samples}{given}", flush=True)
        if not goes_on:
            alone = "" if _built_whole(reference, plan) else ", each tensor drawn alone (docs/running.md)"
            print(f"weights: as {reference} initialises them, seed {job.seed or 0}{alone}", flush=True)


def _resumes(job: Job) -> bool:
    """Whether there is a checkpoint to go on from, or must be; as rank 0 sees it."""
    found = [job.resume == "must" or (job.resume == "auto" and latest(job.folder or "") is not None)]
    dist.broadcast_object_list(found, src=0)
    return found[0]


def _resumed(
    trainer: Trainer, optimizer: torch.optim.Optimizer, data: Loader, job: Job, told: dict[str, Any]
) -> list[float]:
    """The losses so far. What the run is told otherwise than it was is applied, or refused by name.

    told: what this run says of its data, batch and precision.
    """
    assert job.folder is not None
    found = load(trainer, optimizer, job.folder, loader=data, skip_damaged=True, trust=job.trust)
    shown = dist.get_rank() == 0 and not job.quiet
    if dist.get_rank() == 0:
        for fault in found.passed_over:
            print(f"passed over: {fault}", file=sys.stderr, flush=True)
    if job.seed not in (None, trainer.seed):
        raise _otherwise(found.path, f"--seed {job.seed}", f"{trainer.seed}")
    for name, word in (("data", "--data"), ("batch", "--global-batch"), ("precision", "--precision")):
        if name in found.extra and found.extra[name] != told[name]:
            given = "another text" if name == "data" else told[name]
            raise _otherwise(found.path, f"{word} of {given}", "the same text" if name == "data" else found.extra[name])
    if shown:
        lost = "; steps after it are computed again" if found.passed_over else ""
        print(f"going on from {found.path}, step {found.step}{lost}", flush=True)
        if found.step >= job.steps:
            print(f"nothing is left to do: step {found.step} of {job.steps}; give more --steps to go on", flush=True)
    for group in optimizer.param_groups:
        if job.lr is not None and group["lr"] != job.lr:
            if shown:
                print(f"learning rate {group['lr']:g} -> {job.lr:g}, from step {found.step} on", flush=True)
            group["lr"] = job.lr
    losses: list[float] = found.extra.get("losses", [])
    return losses


def _otherwise(path: Path, given: str, saved: object) -> RunError:
    return RunError(f"{given} with --resume from {path}", f"{saved}, as when it was saved", "drop it, or start anew")


def _trainer(reference: Reference, plan: Plan, job: Job) -> Trainer:
    """Weights are made piece by piece; a small model of one's own is built whole, from the same seed, so that it starts
    as in plain PyTorch, and so is one that cannot be built in pieces."""
    loss = reference.family.loss
    if not _built_whole(reference, plan):
        try:
            return parallelize(reference.build, plan, loss, seed=job.seed or 0, timeout_s=job.timeout_s)
        except RunError as error:
            if "meta device" not in f"{error.given} {error.expected}":
                raise
    torch.manual_seed(job.seed or 0)
    return parallelize(reference.build(), plan, loss, seed=job.seed or 0, timeout_s=job.timeout_s)


def _built_whole(reference: Reference, plan: Plan) -> bool:
    return reference.family.is_own and is_small(plan)


def _loop(
    trainer: Trainer,
    optimizer: torch.optim.Optimizer,
    data: Loader,
    told: dict[str, Any],
    progress: Progress,
    job: Job,
) -> bool:
    """Whether it was stopped from outside before its last step."""
    stop = Stop(trainer)
    while trainer.steps < job.steps:
        for batch in data:
            loss = trainer.step(batch).item()
            if not math.isfinite(loss) and not job.go_on_at_nan:
                raise not_finite(loss, trainer.steps, data.numbers)
            told["losses"].append(loss)
            optimizer.step()
            optimizer.zero_grad()
            progress.step(loss, data.numbers)
            if trainer.steps >= job.steps:
                return False
            if stop.agreed():
                return True
            if job.folder and job.every and trainer.steps % job.every == 0 and trainer.steps < job.steps:
                progress.saved(save(trainer, optimizer, job.folder, loader=data, extra=told, keep=job.keep))
    return False


def not_finite(loss: float, step: int, numbers: Sequence[int]) -> RunError:
    """numbers: of the samples in the batch that made it."""
    todo = (
        f"lower --lr, look at samples {named_samples(numbers)} of the data, which are its batch, or pass --go-on-at-nan"
    )
    return RunError(f"the loss is {loss} at step {step}", "a finite loss", todo)


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
