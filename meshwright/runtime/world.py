"""Whether the processes that were started are those that a plan was made for: refused before anything is captured."""

from __future__ import annotations

import json
import os
from hashlib import sha256

import torch
import torch.distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]

from meshwright.errors import RunError, counted
from meshwright.plan import Plan
from meshwright.runtime.meet import join


def join_world(plan: Plan, timeout_s: float) -> None:
    """As many processes as the plan has ranks; those of torchrun are counted before they meet."""
    if not dist.is_initialized():
        backend = "nccl" if torch.cuda.is_available() else "gloo"
        if "RANK" in os.environ:
            _check_size(int(os.environ.get("WORLD_SIZE", plan.world_size)), plan)
            join(backend, timeout_s)
        else:
            _check_size(1, plan)
            dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
    _check_size(dist.get_world_size(), plan)


def _check_size(world: int, plan: Plan) -> None:
    if world != plan.world_size:
        raise RunError(
            f"{counted(world, 'process')} {'is' if world == 1 else 'are'} running",
            f"{plan.world_size}, the plan's world size",
            f"launch {counted(plan.world_size, 'process')} (torchrun --nproc-per-node {plan.world_size}), "
            f"or plan for {world}",
        )


def check_device(plan: Plan, place: torch.device, asked: str | None) -> None:
    """A plan for GPUs is not run on CPUs unless that is asked for."""
    wanted = next((stage.mesh.device for stage in plan.stages if stage.mesh.device.kind == "cuda"), None)
    if wanted is not None and place.type == "cpu" and asked is None:
        why = "the backend is gloo" if torch.cuda.is_available() else "torch sees no GPU"
        raise RunError(
            f"a plan for {wanted.name} on {plan.cluster}, started on CPUs: {why}",
            "GPUs",
            "start it where they are, plan with cluster='local:N', or pass device='cpu' to run it here nonetheless",
        )


def check_alike(plan: Plan) -> None:
    """Ranks that planned for themselves may have found different plans: they would wait for each other for ever."""
    if dist.get_world_size() == 1:
        return
    told = json.loads(plan.to_json())
    for name in ("predicted", "search_log"):
        told.pop(name, None)
    own = sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()
    found = [""] * dist.get_world_size()
    dist.all_gather_object(found, own)
    others = [rank for rank, one in enumerate(found) if one != found[0]]
    if others:
        raise RunError(
            f"rank {others[0]} has another plan than rank 0",
            "one plan on all ranks",
            "plan once, save it (plan.save) and load it on every rank (mw.Plan.load)",
        )
