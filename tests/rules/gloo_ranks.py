"""A slice of the proof on real processes: every rank runs its part, and all of them check the whole."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from rule_cases import cases
from torch.distributed.device_mesh import init_device_mesh

from meshwright.cluster import Mesh, logical_mesh
from meshwright.layout.transport import ProcessTransport, use_transport
from meshwright.rules.prove import Outcome, prove

SLICE = ("attention", "norms", "embedding", "loss")
"""The families whose lowerings hold collectives or depend on the rank, and whose gradients meet."""


def gathered(mesh: Mesh, rank: Callable[[int], Outcome]) -> list[Outcome]:
    mine = rank(dist.get_rank())
    outcomes: list[Outcome] = [mine] * dist.get_world_size()
    dist.all_gather_object(outcomes, mine)
    return outcomes


def prove_slice(rank: int, world: int, store: str, sizes: dict[str, int], counted: str) -> None:
    """The body of one process; rank 0 leaves the number of strategies proven in a file."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    try:
        devices = init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))
        with use_transport(ProcessTransport.from_mesh(devices)):
            given = [case for family in SLICE for case in cases(family)]
            proven = sum(prove(case, logical_mesh(sizes), run=gathered) for case in given)
        if rank == 0:
            with open(counted, "w") as file:
                file.write(str(proven))
    finally:
        dist.destroy_process_group()
