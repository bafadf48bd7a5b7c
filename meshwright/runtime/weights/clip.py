"""Gradient clipping by the norm over all stages, whose parameters lie on different meshes; clipping stage by stage is
noticed.

`torch.nn.utils.clip_grad_norm_(model.parameters(), ...)` sees the parameters of this rank's stage alone, so every stage
is scaled by another factor. The factor is taken when the optimizer steps. Ranks compare theirs in the next step of the
trainer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from meshwright.errors import RunError
from meshwright.plan import Plan
from meshwright.runtime.step.parts import Part
from meshwright.runtime.weights.hosted import on_device
from meshwright.runtime.weights.regions import whole
from meshwright.torch_compat import local_tensor, norms_of


def clip_gradients(
    plan: Plan, parts: Sequence[Part], device: torch.device, max_norm: float, norm_type: float
) -> Tensor:
    """Every rank has a part of its stage's norm; each stage counts once."""
    most = norm_type == float("inf")
    total = torch.zeros((), dtype=torch.float64, device=device)
    for part in parts:
        found = [entry.grad for entry in part.store.stored.values() if entry.grad is not None]
        gradients = [on_device(one, device) if isinstance(one, DTensor) else one for one in found]
        if not gradients:
            continue
        norm = torch.nn.utils.get_total_norm(gradients, norm_type)
        own = whole(norm).double()
        total = torch.maximum(total, own) if most else total + own**norm_type
    if len(plan.stages) > 1:
        # All ranks of a stage have the same number; one of them hands it in.
        speaks = any(part.stage.mesh.ranks[0] == dist.get_rank() for part in parts)
        total = total if speaks or most else torch.zeros_like(total)
        dist.all_reduce(total, dist.ReduceOp.MAX if most else dist.ReduceOp.SUM)
    norm = total if most else total ** (1.0 / norm_type)
    scale = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
    for part in parts:
        for entry in part.store.stored.values():
            if isinstance(entry.grad, DTensor):
                local = entry.grad.to_local()
                local.mul_(scale.to(local.device))
    return norm


CLOSE = 1e-4
"""By which factors that are meant to be one may differ."""


class ClippedStages:
    """One rank's gradients: their norms after a step, and when the optimizer reads them."""

    def __init__(self, parameters: Iterable[nn.Parameter], device: torch.device) -> None:
        self._parameters, self._device = list(parameters), device
        self._gradients: list[Tensor] = []
        self._before = self._after = torch.empty(0)

    def record(self) -> None:
        """After a step of the trainer, or its own clipping: gradients are as they should be."""
        found = [local_tensor(one.grad) for one in self._parameters if one.grad is not None]
        self._gradients = [one for one in found if one.numel()]
        self._before = self._after = self._norms()

    def before_optimizer(self) -> None:
        """Whatever the user has done to them, the optimizer reads them now."""
        self._after = self._norms()

    def _norms(self) -> Tensor:
        if not self._gradients:  # of a stage that is frozen
            return torch.zeros(1)
        return torch.stack([one.to(self._device) for one in norms_of(self._gradients)])

    def check(self) -> None:
        """Every rank calls it. Refuses factors that differ, where every rank has scaled all of its gradients by one."""
        held = self._told().to(self._device, torch.float64)
        dist.all_reduce(held, dist.ReduceOp.MAX)
        most, least, unlike = held.tolist()
        self._gradients = []
        self._before = self._after = torch.zeros(1)
        if not unlike and most <= 1.0 + CLOSE and most + least > CLOSE * most:
            raise RunError(
                f"since the last step the gradients of one stage were scaled by {-least:.4g} and those of another by "
                f"{most:.4g}: clip_grad_norm_ over parameters() has the norm of this rank's stage alone",
                "one factor for all stages",
                "call trainer.clip_grad_norm_(max_norm) instead, or plan with pp=1",
            )

    def _told(self) -> Tensor:
        """(factor, -factor, whether there are several)."""
        there = self._before > 0
        if not bool(there.any()):
            return torch.tensor([-torch.inf, -torch.inf, 0.0])
        factors = (self._after[there] / self._before[there]).double()
        most, least = factors.max(), factors.min()
        unlike = ~torch.isfinite(most) | (most - least > CLOSE * most)
        return torch.stack([most.nan_to_num(), -least.nan_to_num(), unlike.double()])
