"""What collectives reach of the links that were asked for: measured on the ranks, as `meshwright detect` would.

What goes both ways at once over one connection (gloo's all-gather) is far from the wire's rate: what one rank asks for
waits behind what it sends. Values and gradients of a pipeline have a connection for each way. What ranks of one host
send each other is as fast as their cores are.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from statistics import median
from typing import Any

BYTES, FEW = 1 << 20, 1 << 10
TIMES = 3
MORE = 3
"""Inside a host, where it takes milliseconds, so many times as often."""


def reached() -> dict[str, float]:
    """Seconds of each collective of a mebibyte over all ranks, on the slowest of them; on every rank the same."""
    import torch.distributed as dist

    every = list(range(dist.get_world_size()))
    ways = _ways(BYTES, every, None) | {"send": _both_ways(BYTES, every)}
    return {name: _seconds(run, TIMES) for name, run in ways.items()}


def reached_inside(hosts: int, ranks: int) -> dict[str, float]:
    """The same among the ranks of each host, of all hosts at once; `few`: of an all-reduce of a kibibyte."""
    import torch.distributed as dist

    every = [list(range(host * ranks, (host + 1) * ranks)) for host in range(hosts)]
    groups = [dist.new_group(members) for members in every]
    mine = dist.get_rank() // ranks
    ways = _ways(BYTES, every[mine], groups[mine])
    ways["few"] = _ways(FEW, every[mine], groups[mine])["all_reduce"]
    return {name: _seconds(run, MORE * TIMES) for name, run in ways.items()}


def _ways(size: int, members: list[int], group: Any) -> dict[str, Callable[[], Any]]:
    import torch
    import torch.distributed as dist

    whole = torch.zeros(size // 4 // len(members) * len(members))
    part, other = torch.zeros(whole.numel() // len(members)), torch.zeros_like(whole)
    return {
        "all_reduce": lambda: dist.all_reduce(whole, group=group),
        "all_gather": lambda: dist.all_gather_into_tensor(other, part, group=group),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole, group=group),
        "all_to_all": lambda: dist.all_to_all_single(other, whole, group=group),
    }


def _seconds(run: Callable[[], Any], times: int) -> float:
    """The median, on the slowest rank."""
    import torch
    import torch.distributed as dist

    run()
    spent = []
    for _ in range(times):
        dist.barrier()
        start = time.perf_counter()
        run()
        seconds = torch.tensor(time.perf_counter() - start)
        dist.all_reduce(seconds, dist.ReduceOp.MAX)
        spent.append(seconds.item())
    return median(spent)


def _both_ways(size: int, members: list[int]) -> Callable[[], None]:
    """Every rank sends to the next and receives from the one before, as stages do: up and down over a group each."""
    import torch
    import torch.distributed as dist

    out, into = torch.zeros(size // 4), torch.zeros(size // 4)
    up, down = dist.new_group(members), dist.new_group(members)
    rank, world = dist.get_rank(), len(members)
    after, before = (rank + 1) % world, (rank - 1) % world

    def run() -> None:
        begun = [
            dist.isend(out, after, group=up if after > rank else down),
            dist.irecv(into, before, group=up if rank > before else down),
        ]
        for work in begun:
            if work is not None:
                work.wait()

    return run


def with_reached(cluster: Any, world: int, seconds: dict[str, float]) -> Any:
    """The cluster whose links between hosts carry each collective as fast as was seen."""
    from meshwright.cluster import collective_s

    axis = cluster.mesh((world,)).axes[0]
    shares = {kind: min(1.0, collective_s(kind, BYTES, axis) / spent) for kind, spent in seconds.items()}
    link = replace(cluster.root.link, efficiency=tuple(shares.items()))
    return replace(cluster, root=replace(cluster.root, link=link))


def with_reached_inside(cluster: Any, hosts: int, ranks: int, seconds: dict[str, float]) -> Any:
    """The cluster whose ranks of one host reach each other as was seen (`reached_inside`)."""
    from meshwright.cluster import collective_s

    axis = cluster.mesh((hosts, ranks)).axes[1]
    slower = (seconds["few"] - axis.overhead_s) / (collective_s("all_reduce", FEW, axis) - axis.overhead_s)
    link = _inner(cluster).link
    cluster = _with_inner(cluster, latency_s=link.latency_s * max(1.0, slower))
    axis, rates = cluster.mesh((hosts, ranks)).axes[1], {}
    for kind, spent_s in seconds.items():
        if kind != "few":
            least_s = collective_s(kind, 0, axis)
            priced_s, moved_s = collective_s(kind, BYTES, axis) - least_s, max(spent_s - least_s, 0.1 * spent_s)
            rates[kind] = dict(link.efficiency).get(kind, 1.0) * priced_s / moved_s
    most = max(rates.values())
    efficiency = tuple((kind, rate / most) for kind, rate in rates.items())
    return _with_inner(cluster, bandwidth=link.bandwidth * most, efficiency=efficiency)


def _inner(cluster: Any) -> Any:
    """A host of a cluster whose hosts are alike."""
    (member,) = cluster.root.members
    return member.of


def _with_inner(cluster: Any, **fields: Any) -> Any:
    host, (member,) = _inner(cluster), cluster.root.members
    inner = replace(member, of=replace(host, link=replace(host.link, **fields)))
    return replace(cluster, root=replace(cluster.root, members=(inner,)))
