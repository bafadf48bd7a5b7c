"""Gradient clipping by the norm over all stages, whose parameters lie on different meshes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from meshwright.plan import Plan
from meshwright.runtime.step.parts import Part
from meshwright.runtime.weights.hosted import on_device
from meshwright.runtime.weights.whole import whole


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
