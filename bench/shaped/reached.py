"""What collectives reach of the links that were asked for: measured on the ranks, as `meshwright detect` would.

What goes both ways at once over one connection (gloo's all-gather) is far from the wire's rate: what one rank asks for
waits behind what it sends. Values and gradients of a pipeline have a connection for each way.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

BYTES = 1 << 20
TIMES = 3


def reached() -> dict[str, float]:
    """Seconds of each collective of a mebibyte over all ranks, on the slowest of them; on every rank the same."""
    import torch
    import torch.distributed as dist

    world = dist.get_world_size()
    groups = (dist.new_group(), dist.new_group())
    whole = torch.zeros(BYTES // 4 // world * world)
    part, other = torch.zeros(whole.numel() // world), torch.zeros_like(whole)
    ways: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: dist.all_reduce(whole),
        "all_gather": lambda: dist.all_gather_into_tensor(other, part),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole),
        "all_to_all": lambda: dist.all_to_all_single(other, whole),
        "send": lambda: _both_ways(whole, other, *groups),
    }
    found = {}
    for name, run in ways.items():
        run()
        spent = []
        for _ in range(TIMES):
            dist.barrier()
            start = time.perf_counter()
            run()
            seconds = torch.tensor(time.perf_counter() - start)
            dist.all_reduce(seconds, dist.ReduceOp.MAX)
            spent.append(seconds.item())
        found[name] = median(spent)
    return found


def _both_ways(out: Any, into: Any, up: Any, down: Any) -> None:
    """Every rank sends to the next and receives from the one before, as stages do: up and down over a group each."""
    import torch.distributed as dist

    rank, world = dist.get_rank(), dist.get_world_size()
    after, before = (rank + 1) % world, (rank - 1) % world
    begun = [
        dist.isend(out, after, group=up if after > rank else down),
        dist.irecv(into, before, group=up if rank > before else down),
    ]
    for work in begun:
        if work is not None:
            work.wait()


def with_reached(cluster: Any, world: int, seconds: dict[str, float]) -> Any:
    """The cluster whose links between hosts carry each collective as fast as was seen."""
    from dataclasses import replace

    from meshwright.cluster import collective_s

    axis = cluster.mesh((world,)).axes[0]
    shares = {kind: min(1.0, collective_s(kind, BYTES, axis) / spent) for kind, spent in seconds.items()}
    link = replace(cluster.root.link, efficiency=tuple(shares.items()))
    return replace(cluster, root=replace(cluster.root, link=link))
