"""A slice of the proof on real processes: every rank runs its part, and all of them check the whole."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from rule_cases import cases, tolerance
from torch.distributed.device_mesh import init_device_mesh

from meshwright.cluster import Mesh, logical_mesh
from meshwright.layout.transport import ProcessTransport, use_transport
from meshwright.rules.prove import Outcome
from meshwright.rules.strategies import prove

SLICE = ("attention", "norms", "embedding", "loss", "random", "experts")
"""The families whose lowerings hold collectives or depend on the rank, and whose gradients meet."""


def gathered(mesh: Mesh, rank: Callable[[int], Outcome]) -> list[Outcome]:
    mine = rank(dist.get_rank())
    outcomes: list[Outcome] = [mine] * dist.get_world_size()
    dist.all_gather_object(outcomes, mine)
    return outcomes


def prove_slice(rank: int, sizes: dict[str, int]) -> int:
    """The body of one process; how many strategies it has proven."""
    torch.manual_seed(0)  # the same operands everywhere
    devices = init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))
    with use_transport(ProcessTransport.from_mesh(devices)):
        given = [case for family in SLICE for case in cases(family)]
        return sum(prove(case, logical_mesh(sizes), tolerance=tolerance(case), run=gathered) for case in given)
