"""detect: measure the machines of a running job (torchrun, gloo or NCCL) and return them as a Cluster.

Rank 0 decides what to measure next (`survey`) and tells the others through the job's store; every rank, rank 0
included, obeys (`worker`). So only rank 0 reasons, and nothing is agreed on over the network being measured.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from meshwright.cluster.detect.probe import RankInfo
from meshwright.cluster.detect.survey import Survey
from meshwright.cluster.topology import Cluster
from meshwright.errors import ClusterError

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

_ANSWER_TIMEOUT_S = 120.0
# NVLink needs large messages to show its rate; processes on one machine would only fill its memory.
_LARGEST_BYTES = {"gloo": 1 << 24, "nccl": 1 << 28}


def detect(
    backend: str | None = None, timeout_s: float = 60.0, say: Callable[[str], None] = lambda text: None
) -> Cluster | None:
    """Measure the job this process belongs to. Rank 0 returns the cluster, the others None.

    Reads torchrun's environment (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT); one process alone needs none.
    """
    import torch
    import torch.distributed as dist
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]

    from meshwright.cluster.detect.worker import Worker, describe_rank

    backend = backend or ("nccl" if torch.cuda.is_available() else "gloo")
    rank, world, local_rank = _number("RANK", 0), _number("WORLD_SIZE", 1), _number("LOCAL_RANK", 0)
    if backend == "nccl" and local_rank >= torch.cuda.device_count():
        raise ClusterError(
            f"rank {rank} on {socket.gethostname()} wants GPU {local_rank} of {torch.cuda.device_count()}",
            "a GPU per rank for NCCL",
            "start fewer ranks, or use --backend gloo",
        )
    store = meet(rank, world, timeout_s)
    if backend == "nccl":
        torch.cuda.set_device(local_rank)
    dist.init_process_group(
        backend, store=PrefixStore("group", store), rank=rank, world_size=world, timeout=timedelta(seconds=300)
    )
    try:
        orders = PrefixStore("orders", store)
        local_world = _number("LOCAL_WORLD_SIZE", world)
        orders.set(f"info/{rank}", json.dumps(asdict(describe_rank(backend, local_world))))
        worker = Worker(rank, backend, orders)
        if rank != 0:
            worker.serve()
            return None
        return _lead(StoreProber(orders, world, worker.obey, _LARGEST_BYTES[backend]), backend, say)
    finally:
        dist.destroy_process_group()


def _number(name: str, default: int) -> int:
    """A whole number from the environment that torchrun sets."""
    text = os.environ.get(name, str(default))
    if not text.isdecimal():
        raise ClusterError(f"the environment says {name}={text}", "a whole number", "start the job with torchrun")
    return int(text)


def _lead(prober: StoreProber, backend: str, say: Callable[[str], None]) -> Cluster:
    try:
        cluster = Survey(prober, backend, say).cluster()
        cluster.verify()
        return cluster
    finally:
        prober.stop()


def meet(rank: int, world: int, timeout_s: float, what: str = "detection") -> Store:
    """Meet at the store; a rank that does not come is named, with the hosts of those that did. what: the purpose."""
    from torch.distributed import HashStore  # type: ignore[attr-defined]

    if world == 1 and "MASTER_ADDR" not in os.environ:
        return HashStore()
    if absent := [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in os.environ]:
        raise ClusterError(
            f"a job of {world} ranks without {' and '.join(absent)} in the environment",
            "where rank 0 listens",
            "start the job with torchrun",
        )
    store = _open_store(rank, timedelta(seconds=timeout_s))
    store.set(f"joined/{what}/{rank}", socket.gethostname())
    missing = _missing(store, world, timeout_s, what=what)
    if missing:
        here = {other: store.get(f"joined/{what}/{other}").decode() for other in range(world) if other not in missing}
        raise ClusterError(
            f"rank {', rank '.join(map(str, missing))} did not join {what} within {timeout_s:.0f} s",
            f"{world} ranks; these came: " + ", ".join(f"rank {r} on {name}" for r, name in here.items()),
            "start every rank, or give a longer --timeout",
        )
    return store


def _open_store(rank: int, limit: timedelta) -> Store:
    """The job's store: torchrun's agent keeps one, else rank 0 does. Waits for nobody, so that absence is seen."""
    import torch.distributed as dist
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

    host, port = os.environ["MASTER_ADDR"], _number("MASTER_PORT", 0)
    by_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    try:
        store = TCPStore(
            host, port, is_master=rank == 0 and not by_agent, timeout=limit, wait_for_workers=False, multi_tenant=True
        )
    except dist.DistError as error:
        raise ClusterError(
            f"rank {rank} could not reach {host}:{port} in {limit.total_seconds():.0f} s",
            "rank 0 listening there",
            "check MASTER_ADDR, MASTER_PORT and the firewall",
        ) from error
    if rank == 0:
        _KEPT[host, port] = store
    namespaced: Store = PrefixStore(f"meshwright/{restart_count()}", store)
    return namespaced


_KEPT: dict[tuple[str, int], Store] = {}
"""Stores that rank 0 has opened, by address: one that it holds would go when detection is over, while others already
look for the job there."""


def restart_count() -> str:
    """How often the job was started again, where its store outlives that: what was left there is not to be read.

    A store in rank 0 goes with it. Hosts that joined later have counted fewer restarts than the others.
    """
    kept = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") if kept else "0"


def _missing(
    store: Store, world: int, timeout_s: float, clock: Callable[[], float] = time.monotonic, what: str = "detection"
) -> list[int]:
    """Ranks that have not come when the time is up; all of them together get that time."""
    deadline = clock() + timeout_s
    return [
        rank
        for rank in range(world)
        if not _arrived(store, f"joined/{what}/{rank}", timedelta(seconds=max(0.01, deadline - clock())))
    ]


def _arrived(store: Store, key: str, limit: timedelta) -> bool:
    import torch.distributed as dist

    try:
        store.wait([key], limit)
    except dist.DistError:
        return False
    return True


class StoreProber:
    """Rank 0's Prober: numbered orders in the store, answers from the ranks that have one."""

    def __init__(
        self, orders: Store, world: int, obey: Callable[[int, dict[str, Any]], None], largest_bytes: int
    ) -> None:
        self._orders, self._number, self._obey = orders, 0, obey
        self.largest_bytes = largest_bytes
        self.ranks: Sequence[RankInfo] = [_rank_info(self._get(f"info/{rank}", rank)) for rank in range(world)]

    def order(self, what: dict[str, Any], answering: Sequence[int]) -> list[Any]:
        """Give an order to all ranks, obey it here too, and return the answers of those who owe one."""
        number, self._number = self._number, self._number + 1
        self._orders.set(f"order/{number}", json.dumps(what))
        self._obey(number, what)
        return [self._get(f"answer/{number}/{rank}", rank) for rank in answering]

    def stop(self) -> None:
        self._orders.set(f"order/{self._number}", json.dumps({"do": "stop"}))

    def _get(self, key: str, rank: int) -> Any:
        import torch.distributed as dist

        try:
            self._orders.wait([key], timedelta(seconds=_ANSWER_TIMEOUT_S))
        except dist.DistError as error:
            raise ClusterError(
                f"rank {rank} stopped answering during detection", "an answer", "look at that rank's log"
            ) from error
        answer = json.loads(self._orders.get(key))
        if isinstance(answer, dict) and "failed" in answer:
            raise ClusterError(f"rank {rank} failed during detection: {answer['failed']}", "a measurement")
        return answer

    def flows(self, pairs: Sequence[tuple[int, int]], n_bytes: int) -> list[list[float]]:
        receivers = list(dict.fromkeys(receiver for _, receiver in pairs))
        answers = self.order({"do": "flows", "pairs": list(pairs), "bytes": n_bytes}, receivers)
        times = {receiver: iter(answer) for receiver, answer in zip(receivers, answers, strict=True)}
        return [next(times[receiver]) for _, receiver in pairs]

    def round_trip(self, pair: tuple[int, int]) -> list[float]:
        answer: list[float] = self.order({"do": "round_trip", "pair": pair}, [pair[0]])[0]
        return answer

    def collective(self, kind: str, ranks: Sequence[int], n_bytes: int) -> list[float]:
        answers = self.order({"do": "collective", "kind": kind, "ranks": list(ranks), "bytes": n_bytes}, ranks)
        return [max(times) for times in zip(*answers, strict=True)]


def _rank_info(plain: dict[str, Any]) -> RankInfo:
    flops = tuple((str(dtype), float(rate)) for dtype, rate in plain.pop("matmul_flops"))
    return RankInfo(**plain, matmul_flops=flops)
