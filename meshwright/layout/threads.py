"""Simulated ranks: N threads of one process, meeting at barriers. For tests and for proofs of lowerings.

CPU autograd runs backward on the thread that asks for it, so collectives in backward work here too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from itertools import product
from math import prod
from typing import TypeVar

import torch
from torch import Tensor

from meshwright.cluster.mesh import FLAT
from meshwright.errors import LayoutError
from meshwright.layout.record import own_logs
from meshwright.layout.transport import use_transport_on_this_thread

Result = TypeVar("Result")
_TIMEOUT_S = 60.0


class _Meeting:
    """One communication group: ranks leave a tensor, meet, and read what the others left."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size)
        self.slots: list[tuple[str, Tensor] | None] = [None] * size

    def exchange(self, index: int, what: str, x: Tensor, combine: Callable[[list[Tensor]], Tensor]) -> Tensor:
        """Meet the group and return `combine` of what all left, in rank order."""
        self.slots[index] = (what, x)
        self.barrier.wait(_TIMEOUT_S)
        left = [slot for slot in self.slots if slot is not None]
        names = [name for name, _ in left]
        combined = combine([tensor for _, tensor in left]) if names == [what] * len(left) else None
        self.barrier.wait(_TIMEOUT_S)  # nobody goes on, and may change its tensor, before all have read
        if combined is None:
            raise LayoutError(f"simulated ranks disagree: {names}", "the same collective on every rank")
        return combined


class _World:
    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.sizes = dict(sizes)
        self.ranks = list(product(*map(range, self.sizes.values())))
        self._meetings: dict[tuple[str, tuple[int, ...]], _Meeting] = {}
        self._lock = threading.Lock()
        self._broken = False

    def meeting(self, axis: str, others: tuple[int, ...], size: int) -> _Meeting:
        with self._lock:
            if self._broken:
                raise threading.BrokenBarrierError
            if (axis, others) not in self._meetings:
                self._meetings[axis, others] = _Meeting(size)
            return self._meetings[axis, others]

    def abort(self) -> None:
        """Wake every waiting rank: one of them has failed."""
        with self._lock:
            self._broken = True
            for meeting in self._meetings.values():
                meeting.barrier.abort()


class ThreadTransport:
    """The transport of one simulated rank, at `coordinates` of a mesh with these axis sizes."""

    def __init__(self, world: _World, coordinates: tuple[int, ...]) -> None:
        self._world = world
        self._coordinates = dict(zip(world.sizes, coordinates, strict=True))

    def _names(self, axis: str) -> list[str]:
        names = axis.split(FLAT)
        if unknown := [name for name in names if name not in self._coordinates]:
            raise LayoutError(f"no mesh axis {unknown[0]!r}", f"one of {list(self._coordinates)}")
        return names

    def size(self, axis: str) -> int:
        return prod(self._world.sizes[name] for name in self._names(axis))

    def index(self, axis: str) -> int:
        index = 0
        for name in self._names(axis):
            index = index * self._world.sizes[name] + self._coordinates[name]
        return index

    def _exchange(
        self, axis: str, kind: str, x: Tensor, combine: Callable[[list[Tensor]], Tensor], alike: bool = True
    ) -> Tensor:
        """`alike`: the ranks' tensors have one shape."""
        names = self._names(axis)
        others = tuple(at for name, at in self._coordinates.items() if name not in names)
        what = f"{kind}({axis}) of {tuple(x.shape) if alike else 'rows'} {x.dtype}"
        return self._world.meeting(axis, others, self.size(axis)).exchange(self.index(axis), what, x.detach(), combine)

    def all_reduce(self, x: Tensor, axis: str, op: str) -> Tensor:
        def combine(all_x: list[Tensor]) -> Tensor:
            stacked = torch.stack(all_x)
            return stacked.amax(0) if op == "max" else stacked.sum(0, dtype=x.dtype)

        return self._exchange(axis, f"all_reduce_{op}", x, combine)

    def all_gather(self, x: Tensor, axis: str) -> Tensor:
        return self._exchange(axis, "all_gather", x, torch.stack)

    def reduce_scatter(self, pieces: Tensor, axis: str) -> Tensor:
        mine = self.index(axis)

        def combine(all_pieces: list[Tensor]) -> Tensor:
            return torch.stack([other[mine] for other in all_pieces]).sum(0, dtype=pieces.dtype)

        return self._exchange(axis, "reduce_scatter", pieces, combine)

    def all_to_all(self, pieces: Tensor, axis: str) -> Tensor:
        mine = self.index(axis)
        return self._exchange(
            axis, "all_to_all", pieces, lambda all_pieces: torch.stack([other[mine] for other in all_pieces])
        )

    def exchange(self, x: Tensor, sent: list[int], received: list[int], axis: str) -> Tensor:
        mine, splits = self.index(axis), torch.tensor(sent)
        everyone = self._exchange(axis, "exchange", splits, torch.stack).tolist()

        def combine(all_x: list[Tensor]) -> Tensor:
            runs = [torch.split(other, sizes)[mine] for other, sizes in zip(all_x, everyone, strict=True)]
            if [len(run) for run in runs] != received:
                raise LayoutError(f"runs of {[len(run) for run in runs]} rows arrived", f"{received}, as announced")
            return torch.cat(runs)

        return self._exchange(axis, "exchange_rows", x, combine, alike=False)


def simulate(sizes: Mapping[str, int], fn: Callable[[int], Result]) -> list[Result]:
    """Run `fn(rank)` on every rank of a simulated mesh; results in rank order (row-major over the axes).

    The first exception of any rank is raised here, and the others are woken, so that nothing hangs.
    """
    world = _World(sizes)
    results: dict[int, Result] = {}
    failures: list[BaseException] = []

    def body(rank: int, coordinates: tuple[int, ...]) -> None:
        try:
            with use_transport_on_this_thread(ThreadTransport(world, coordinates)), own_logs():
                results[rank] = fn(rank)
        except BaseException as error:
            failures.append(error)
            world.abort()

    threads = [
        threading.Thread(target=body, args=(rank, coordinates), daemon=True)
        for rank, coordinates in enumerate(world.ranks)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise next((e for e in failures if not isinstance(e, threading.BrokenBarrierError)), _stuck())
    return [results[rank] for rank in range(len(world.ranks))]


def _stuck() -> LayoutError:
    return LayoutError(
        f"a simulated rank waited over {_TIMEOUT_S:.0f} s for the others",
        "every rank of a group to run the same collectives in the same order",
    )
