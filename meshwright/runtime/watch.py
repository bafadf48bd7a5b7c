"""No hang: a rank that waits too long says for what, and which ranks are late; then it ends, and its launcher the rest.

Every rank tells the job's store how many instructions it has begun. Ranks of a plan run the same list, so whoever has
begun fewest is late. A rank that fails leaves word there too (`blame`): those that wait for it say which it was.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from itertools import combinations, count
from typing import Self
from weakref import ref

import torch.distributed as dist
from torch import Tensor
from torch.distributed import Store  # type: ignore[attr-defined]

from meshwright.cluster import FLAT
from meshwright.layout.transport import ProcessTransport
from meshwright.runtime.blame import Blame
from meshwright.torch_compat import own_store

TIMEOUT_S = 600.0
LATE = 3
"""The exit code of a rank that gave up waiting."""
LAST_LOOK_S = 5.0
"""How long the end of a process waits for its watch to come back from the store."""


def default_timeout_s() -> float:
    return float(os.environ.get("MESHWRIGHT_TIMEOUT_S", TIMEOUT_S))


_NUMBERS = count()
"""Ranks make their trainers in the same order: the n-th of each watch each other."""


def _watch(watch: ref[Watch], every_s: float, over: threading.Event) -> None:
    while not over.wait(every_s):
        found = watch()
        if found is None:
            return
        found.look()
        del found


def _rest(over: threading.Event, thread: threading.Thread) -> None:
    """A thread that comes back from the store while the interpreter goes down would take the whole process with it."""
    over.set()
    thread.join(LAST_LOOK_S)


class Watch:
    """One rank's clock. `at` is called with each thing begun; a thread compares it with the other ranks'."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s, self.count, self.op, self.busy = timeout_s, 0, "", False
        self.what: object = "starting"
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self._since = time.monotonic()
        self._published = ""
        self.blame: Blame | None = None
        if self.world > 1 and timeout_s > 0:
            self._store: Store = own_store(f"meshwright/watch/{next(_NUMBERS)}")
            self._store.set_timeout(timedelta(seconds=max(5.0, timeout_s / 4)))
            self.blame = Blame(self._store, self.rank, self.world, partial(_begun, self._store))
            self._publish()
            over = threading.Event()
            every_s = min(1.0, timeout_s / 5)
            thread = threading.Thread(target=_watch, args=(ref(self), every_s, over), daemon=True)
            thread.start()
            atexit.register(_rest, over, thread)

    def at(self, what: object) -> None:
        self.count, self.what, self.busy, self._since = self.count + 1, what, True, time.monotonic()

    @contextmanager
    def during(self, what: str) -> Iterator[None]:
        """A thing that ranks do together: where one fails, the others raise LostError, which names it."""
        self.at(what)
        try:
            yield
        except Exception as error:
            lost = self.blame.judge(error, self.count) if self.blame is not None else None
            if lost is None:
                raise
            raise lost from None
        finally:
            self.what, self.busy = "between steps", False

    def look(self) -> None:
        """Tell the others where this rank is; give up where it has waited too long."""
        with suppress(RuntimeError, dist.DistError):  # the store goes with rank 0: the clock tells
            self._publish()
            if self.blame is not None and self.blame.overdue() and self.busy:
                self._end(str(self.blame.lost()))
        if self.busy and time.monotonic() - self._since > self.timeout_s:
            self._give_up()

    def _publish(self) -> None:
        text = f"{self.count} {self.what}"
        if self._published != text:
            self._store.set(str(self.rank), text)
            self._published = text

    def _give_up(self) -> None:
        self._end(self.report())

    def _end(self, message: str) -> None:
        try:
            first = self._store.add("told", 1) == 1
        except (RuntimeError, dist.DistError):
            first = True
        if first:
            print(f"meshwright: {message}", file=sys.stderr, flush=True)
        os._exit(LATE)

    def report(self) -> str:
        """What this rank waits for, and for whom."""
        for_what = f"`{self.what}`" + (f", {self.op}" if self.op else "")
        lines = [f"rank {self.rank} has waited {self.timeout_s:.0f} s in {for_what}"]
        others = {rank: _told(self._store, rank) for rank in range(self.world) if rank != self.rank}
        least = min(count for count, _ in others.values())
        if str(self.what).startswith("stage "):  # stages run lists of their own: their counts say nothing of each other
            lines.append(f"the others: {', '.join(f'rank {rank} ({what})' for rank, (_, what) in others.items())}")
        elif least >= self.count:
            lines.append("no rank is behind: the network between them may be gone")
        else:
            late = [f"rank {rank} ({what})" for rank, (count, what) in others.items() if count == least]
            lines.append(f"late: {', '.join(late)}")
        lines.append("to do: see what these ranks do; MESHWRIGHT_TIMEOUT_S sets how long others wait")
        return "\n  ".join(lines)


def _told(store: Store, rank: int) -> tuple[int, str]:
    """How much a rank has begun, and what it is at."""
    try:
        count, _, what = store.get(str(rank)).decode().partition(" ")
    except (RuntimeError, dist.DistError):
        return -1, "it does not answer"
    return int(count), f"at `{what}`"


def _begun(store: Store, rank: int) -> int:
    return _told(store, rank)[0]


_SHARED: dict[tuple[int, str, tuple[int, ...], tuple[int, ...]], ProcessTransport] = {}
"""Groups by default group, purpose, ranks and mesh sizes: trainers of one process share them."""


class WatchedTransport(ProcessTransport):
    """Collectives whose names a Watch knows while they run; an axis of one rank has nobody to talk to."""

    _watch: Watch | None = None

    def watched_by(self, watch: Watch) -> Self:
        self._watch = watch
        return self

    @classmethod
    def shared(cls, ranks: Tensor, names: Sequence[str], purpose: str) -> Self | None:
        """Like `from_ranks`, over groups that nothing of another purpose uses; None on a rank that is not in them.

        Every process must call this.
        """
        key = (id(dist.group.WORLD), purpose, tuple(ranks.flatten().tolist()), tuple(ranks.shape))
        numbers = range(ranks.ndim)
        if key not in _SHARED:
            _SHARED[key] = ProcessTransport.from_ranks(ranks, [str(number) for number in numbers])
        if dist.get_rank() not in key[2]:
            return None
        subsets = [chosen for length in numbers for chosen in combinations(numbers, length + 1)]
        made = _SHARED[key]
        return cls({FLAT.join(names[i] for i in some): made.group(FLAT.join(map(str, some))) for some in subsets})

    @contextmanager
    def _named(self, kind: str, axis: str) -> Iterator[None]:
        if self._watch is not None:
            self._watch.op = f"{kind} over {axis}"
        yield
        if self._watch is not None:
            self._watch.op = ""

    def _alone(self, axis: str) -> bool:
        return dist.get_world_size(self.group(axis)) == 1

    def all_reduce(self, x: Tensor, axis: str, op: str) -> Tensor:
        if self._alone(axis):
            return x.clone()
        with self._named("all_reduce", axis):
            return super().all_reduce(x, axis, op)

    def sum_in_place(self, x: Tensor, axis: str) -> Tensor:
        if self._alone(axis):
            return x
        with self._named("all_reduce", axis):
            return super().sum_in_place(x, axis)

    def gather_into(self, out: Tensor, x: Tensor, axis: str) -> Tensor:
        if self._alone(axis):
            return out.copy_(x.view(out.shape))
        with self._named("all_gather", axis):
            return super().gather_into(out, x, axis)

    def scatter_into(self, out: Tensor, pieces: Tensor, axis: str) -> Tensor:
        if self._alone(axis):
            return out.copy_(pieces.view(out.shape))
        with self._named("reduce_scatter", axis):
            return super().scatter_into(out, pieces, axis)

    def all_gather(self, x: Tensor, axis: str) -> Tensor:
        if self._alone(axis):
            return x.clone()[None]
        with self._named("all_gather", axis):
            return super().all_gather(x, axis)

    def reduce_scatter(self, pieces: Tensor, axis: str) -> Tensor:
        if self._alone(axis):
            return pieces[0].clone()
        with self._named("reduce_scatter", axis):
            return super().reduce_scatter(pieces, axis)

    def all_to_all(self, pieces: Tensor, axis: str) -> Tensor:
        if self._alone(axis):
            return pieces.clone()
        with self._named("all_to_all", axis):
            return super().all_to_all(pieces, axis)
