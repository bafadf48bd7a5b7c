"""What every rank does in detection: describe its device, then send, receive and reduce as ordered."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from meshwright.cluster.detect.probe import RankInfo
from meshwright.cluster.launch import launch_s

# torch 2.13 renamed these and warns about the old names, which are the only ones that 2.11 has.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

_REPEATS = 3
_TRIPS = 20


def describe_rank(backend: str, local_world: int) -> RankInfo:
    """This rank's host and device, with rates measured here and now."""
    cuda = backend == "nccl"
    device = torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")
    if cuda:
        properties = torch.cuda.get_device_properties(device)
        name, memory_bytes = properties.name, properties.total_memory
    else:
        pages = os.sysconf("SC_PHYS_PAGES")
        name, memory_bytes = "cpu", os.sysconf("SC_PAGE_SIZE") * pages // local_world
    return RankInfo(
        host=socket.gethostname(),
        device=name,
        kind=device.type,
        memory_bytes=memory_bytes,
        memory_bandwidth=_copy_rate(device),
        launch_s=launch_s(device),
        matmul_flops=(
            ("float32", _matmul_flops(device, torch.float32)),
            ("bfloat16", _matmul_flops(device, torch.bfloat16)),
        ),
    )


def _best_s(work: Callable[[], object], device: torch.device) -> float:
    """The shortest of a few runs: a busy machine only ever makes a run longer."""
    best = float("inf")
    for _ in range(4):
        _synchronize(device)
        start = time.perf_counter()
        work()
        _synchronize(device)
        best = min(best, time.perf_counter() - start)
    return best


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _matmul_flops(device: torch.device, dtype: torch.dtype) -> float:
    n = 8192 if device.type == "cuda" else 384
    # Random numbers: a matmul of ones draws less power, and then runs faster than training ever will.
    a, b = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
    return 2.0 * n**3 / _best_s(lambda: a @ b, device)


def _copy_rate(device: torch.device) -> float:
    n_bytes = 1 << 30 if device.type == "cuda" else 1 << 25
    source = torch.zeros(n_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2.0 * n_bytes / _best_s(lambda: target.copy_(source), device)


class Worker:
    """Obeys numbered orders until told to stop."""

    def __init__(self, rank: int, backend: str, orders: Any) -> None:
        self.rank, self.orders = rank, orders
        self.device = torch.device("cuda", torch.cuda.current_device()) if backend == "nccl" else torch.device("cpu")
        self.groups: dict[tuple[int, ...], dist.ProcessGroup] = {}

    def serve(self) -> None:
        """Obey orders as they come."""
        number = 0
        while True:
            self.orders.wait([f"order/{number}"], timedelta(minutes=10))
            order = json.loads(self.orders.get(f"order/{number}"))
            if order["do"] == "stop":
                return
            self.obey(number, order)
            number += 1

    def obey(self, number: int, order: dict[str, Any]) -> None:
        """Do one order; leave the answer, or the failure, in the store."""
        try:
            answer = getattr(self, f"_{order['do']}")(order)
        except Exception as error:
            answer = {"failed": f"{type(error).__name__}: {error}"}
        if answer is not None:
            self.orders.set(f"answer/{number}/{self.rank}", json.dumps(answer))

    def _items(self, n_bytes: int) -> Tensor:
        return torch.zeros(max(1, n_bytes // 4), device=self.device)

    def _flows(self, order: dict[str, Any]) -> list[list[float]] | None:
        """All pairs send at once; the receiver's clock runs from a barrier until its data is there."""
        pairs = [(i, a, b) for i, (a, b) in enumerate(order["pairs"]) if self.rank in (a, b)]
        inbox = [(i, self._items(order["bytes"]), a) for i, a, b in pairs if b == self.rank]
        outbox = [(i, self._items(order["bytes"]), b) for i, a, b in pairs if a == self.rank]
        times: list[list[float]] = [[] for _ in inbox]
        for _ in range(_REPEATS):
            dist.barrier()
            start = time.perf_counter()
            operations = [dist.P2POp(dist.irecv, x, peer, tag=i) for i, x, peer in inbox]
            operations += [dist.P2POp(dist.isend, x, peer, tag=i) for i, x, peer in outbox]
            works = dist.batch_isend_irecv(operations) if operations else []
            for k, work in enumerate(works):
                work.wait()
                if k < len(inbox):
                    _synchronize(self.device)
                    times[k].append(time.perf_counter() - start)
            while len(works) < len(inbox) and any(len(t) < len(times[0]) for t in times):
                # NCCL joins a batch into one operation: all of it arrives together.
                next(t for t in times if len(t) < len(times[0])).append(times[0][-1])
        return times if inbox else None

    def _round_trip(self, order: dict[str, Any]) -> list[float] | None:
        first, second = order["pair"]
        x = self._items(4)
        dist.barrier()
        if self.rank not in (first, second):
            return None
        times = []
        for _ in range(_REPEATS):
            _synchronize(self.device)
            start = time.perf_counter()
            for _ in range(_TRIPS):
                self._trip(x, second if self.rank == first else first, sends=self.rank == first)
            _synchronize(self.device)
            times.append((time.perf_counter() - start) / _TRIPS)
        return times if self.rank == first else None

    def _trip(self, x: Tensor, peer: int, sends: bool) -> None:
        if sends:
            dist.send(x, peer)
            dist.recv(x, peer)
        else:
            dist.recv(x, peer)
            dist.send(x, peer)

    def _collective(self, order: dict[str, Any]) -> list[float] | None:
        ranks = tuple(order["ranks"])
        if ranks not in self.groups:  # every rank takes part in making a group, its members or not
            self.groups[ranks] = dist.new_group(list(ranks))
        dist.barrier()
        if self.rank not in ranks:
            return None
        run = self._collective_call(order["kind"], self.groups[ranks], len(ranks), order["bytes"])
        run()
        times = []
        for _ in range(_REPEATS):
            dist.barrier(self.groups[ranks])
            _synchronize(self.device)
            start = time.perf_counter()
            run()
            _synchronize(self.device)
            times.append(time.perf_counter() - start)
        return times

    def _collective_call(self, kind: str, group: dist.ProcessGroup, n: int, n_bytes: int) -> Callable[[], object]:
        whole = self._items(max(n_bytes, 4 * n))
        whole = whole[: len(whole) // n * n]
        piece, other = whole[: len(whole) // n].clone(), whole.clone()
        if kind == "all_reduce":
            return lambda: dist.all_reduce(whole, group=group)
        if kind == "all_gather":
            return lambda: _all_gather(whole, piece, group=group)
        if kind == "reduce_scatter":
            return lambda: _reduce_scatter(piece, whole, group=group)
        return lambda: dist.all_to_all_single(other, whole, group=group)
