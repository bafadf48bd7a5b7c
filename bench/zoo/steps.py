"""Three AdamW steps: of the plain model in one process, and of the planned model on gloo ranks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from bench.zoo.entry import Case, eager_loss
from meshwright.errors import MeshwrightError
from meshwright.plan.plan import Plan

LR, EPS = 1e-2, 1e-5
"""eps keeps a gradient that is zero but for rounding from becoming a whole step of AdamW."""


@dataclass(slots=True)
class Trace:
    """What three steps gave: a loss and gradients by name for each, then the state."""

    losses: list[float] = field(default_factory=list)
    gradients: list[dict[str, Tensor]] = field(default_factory=list)
    state: dict[str, Tensor] = field(default_factory=dict)


class RankError(Exception):
    """A rank failed. kind: `refused`, `traceback` or `abort`."""

    def __init__(self, kind: str, text: str) -> None:
        self.kind = kind
        super().__init__(text)


def kind_of(error: MeshwrightError) -> str:
    """A refusal says what to do; an error of ours that does not is a fault like a traceback."""
    return "refused" if error.todo else "unnamed"


def optimizer_of(parameters: Any, name: str) -> torch.optim.Optimizer:
    if name == "sgd":
        return torch.optim.SGD(parameters, lr=LR)
    return torch.optim.AdamW(parameters, lr=LR, eps=EPS, weight_decay=0.1)


def eager_steps(case: Case, optimizer: str) -> Trace:
    """Plain PyTorch. Parameters that require no gradient are the optimizer's too, as in most users' loops."""
    found = Trace()
    update = optimizer_of(case.model.parameters(), optimizer)
    for batch in case.batches:
        update.zero_grad()
        loss = eager_loss(case, batch)
        loss.backward()
        found.losses.append(float(loss.detach()))
        found.gradients.append(_gradients(case.model.named_parameters()))
        update.step()
    found.state = {name: value.detach().clone() for name, value in case.model.state_dict().items() if _tensor(value)}
    return found


def planned_steps(case: Case, plan: Plan) -> Trace:
    """The same on this rank: a part of each gradient's and parameter's names where the plan is a pipeline."""
    import meshwright as mw

    found = Trace()
    trainer = mw.parallelize(case.model, plan, case.loss)
    update = optimizer_of(trainer.parameters(), plan.optimizer)
    for batch in case.batches:
        update.zero_grad()
        found.losses.append(float(trainer.step(batch, global_batch=True)))
        found.gradients.append(_gradients(trainer.named_parameters()))
        update.step()
    found.state = {name: _whole(value).clone() for name, value in trainer.state_dict().items() if _tensor(value)}
    return found


def _tensor(value: object) -> bool:
    return isinstance(value, Tensor)


def _gradients(named: Any) -> dict[str, Tensor]:
    return {name: _whole(p.grad).clone() for name, p in named if p.grad is not None}


def _whole(value: Tensor) -> Tensor:
    full = value.detach().full_tensor() if hasattr(value, "full_tensor") else value.detach()
    return full.to_dense() if full.layout is not torch.strided else full
