"""Sharded tensors come together over the host's memory as they do by themselves."""

from __future__ import annotations

from collections.abc import Callable

import torch
from processes import GlooPool
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from meshwright.runtime.weights.regions import through_host, whole


def gathered(rank: int) -> list[bool]:
    square, line = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp")), init_device_mesh("cpu", (4,))
    full = torch.arange(35.0).view(7, 5)
    cases = [
        distribute_tensor(full, square, [Shard(0), Shard(1)]),
        distribute_tensor(full, square, [Replicate(), Shard(0)]),
        distribute_tensor(full, line, [Shard(1)]),
    ]
    return [torch.equal(take(case), full) for case in cases for take in (through_host, whole)]


def test_pieces_are_gathered_over_the_host(ranks: Callable[[int], GlooPool]) -> None:
    for found in ranks(4).run(gathered):
        assert found == [True] * 6
    plain = torch.ones(3)
    assert whole(plain) is plain
