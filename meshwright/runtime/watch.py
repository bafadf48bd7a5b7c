"""No hang: a rank that waits too long says for what, and which ranks are late; then it ends, and its launcher the rest.

Every rank tells the job's store how many instructions it has begun. Ranks of a plan run the same list, so whoever has
begun fewest is late. A rank that fails leaves word there too (`blame`): those that wait for it say which it was. One
that stands still is missed by its neighbours (`presence`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from itertools import combinations, count
from typing import Self
from weakref import WeakKeyDictionary

import torch.distributed as dist
from torch import Tensor
from torch.distributed import Store  # type: ignore[attr-defined]

from meshwright.cluster import FLAT
from meshwright.layout.transport import ProcessTransport
from meshwright.runtime.blame import Blame
from meshwright.runtime.presence import presence_of
from meshwright.runtime.seal import opened, sealed
from meshwright.torch_compat import own_store

TIMEOUT_S = 600.0


def default_timeout_s() -> float:
    return float(os.environ.get("MESHWRIGHT_TIMEOUT_S", TIMEOUT_S))


_NUMBERS = count()
"""Ranks make their trainers in the same order: the n-th of each watch each other."""


class Watch:
    """One rank's clock. `at` is called with each thing begun; it is compared with the other ranks'."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s, self.count, self.op, self.busy = timeout_s, 0, "", False
        self.what: object = "starting"
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.since_s = time.monotonic()
        self._published = ""
        self.waited_s = 0.0  # in collectives, so far
        self._told: dict[int, tuple[int, str]] = {}
        self._lost = ""
        self.blame: Blame | None = None
        if self.world > 1 and timeout_s > 0:
            self._store: Store = own_store(f"meshwright/watch/{next(_NUMBERS)}")
            self._store.set_timeout(timedelta(seconds=max(5.0, timeout_s / 4)))
            self.blame = Blame(self._store, self.rank, self.world, partial(_begun, self._store))
            self._publish()
            self._presence = presence_of(timeout_s)
            self._presence.watches.add(self)

    def at(self, what: object) -> None:
        self.count, self.what, self.busy, self.since_s = self.count + 1, what, True, time.monotonic()

    def place(self) -> str:
        """What this rank is at."""
        return f"{self.what}" + (f", {self.op}" if self.op else "")

    @contextmanager
    def during(self, what: str) -> Iterator[None]:
        """A thing that ranks do together: where one fails, the others raise LostError, which names it."""
        outside = (self.what, self.busy) if self.busy else ("between steps", False)
        self.at(what)
        try:
            yield
        except Exception as error:
            lost = self.blame.judge(error, self.count) if self.blame is not None else None
            if lost is None:
                raise
            raise lost from None
        finally:
            self.what, self.busy = outside
            self.since_s = time.monotonic()

    def talk(self) -> None:
        """Tell the others where this rank is, and hear whether one of them has failed. May wait for the store."""
        self._publish()
        if self.blame is not None and self.blame.overdue() and self.busy:
            self._lost = str(self.blame.lost())
        if self.busy and time.monotonic() - self.since_s > self.timeout_s / 2:  # so that it is known when it is told
            self._told = {rank: _told(self._store, rank) for rank in range(self.world) if rank != self.rank}

    def tick(self, paused_s: float) -> None:
        """Give up where this rank has waited too long; it waits for nobody here."""
        self.since_s += paused_s
        if self._lost and self.busy:
            self._presence.give_up(self._lost)
        if self.busy and time.monotonic() - self.since_s > self.timeout_s:
            self._presence.give_up(self.report())

    def _publish(self) -> None:
        text = f"{self.count} {self.place()}"
        if self._published != text:
            name = str(self.rank)
            self._store.set(name, sealed(name, text))
            self._published = text

    def report(self) -> str:
        """What this rank waits for, and for whom."""
        here = f"rank {self.rank}{self._presence.host_of(self.rank)}"
        lines = [f"{here} has waited {self.timeout_s:.0f} s in `{self.what}`" + (f", {self.op}" if self.op else "")]
        others = self._told or {rank: _UNHEARD for rank in range(self.world) if rank != self.rank}
        least = min(count for count, _ in others.values())
        if str(self.what).startswith("stage "):  # stages run lists of their own: their counts say nothing of each other
            lines.append(f"the others: {', '.join(self._named(rank, what) for rank, (_, what) in others.items())}")
        elif least >= self.count:
            lines.append("no rank is behind: the network between them may be gone")
        else:
            late = [self._named(rank, what) for rank, (count, what) in others.items() if count == least]
            lines.append(f"late: {', '.join(late)}")
        lines.append("to do: see what these ranks do; MESHWRIGHT_TIMEOUT_S sets how long others wait")
        return "\n  ".join(lines)

    def _named(self, rank: int, what: str) -> str:
        return f"rank {rank}{self._presence.host_of(rank)} ({what})"


_UNHEARD = (-1, "it does not answer")


def _told(store: Store, rank: int) -> tuple[int, str]:
    """How much a rank has begun, and what it is at."""
    try:
        text = opened(str(rank), store.get(str(rank))) if store.check([str(rank)]) else None
    except (RuntimeError, dist.DistError):
        return _UNHEARD
    count, _, what = (text or "").partition(" ")
    return (int(count), f"at `{what}`") if count.isdecimal() else _UNHEARD


def _begun(store: Store, rank: int) -> int:
    return _told(store, rank)[0]


Key = tuple[str, tuple[int, ...], tuple[int, ...]]
_SHARED: WeakKeyDictionary[dist.ProcessGroup, dict[Key, ProcessTransport]] = WeakKeyDictionary()
"""Of a world, groups by purpose, ranks and mesh sizes: trainers of one process share them."""


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
        world = dist.group.WORLD
        assert world is not None
        key: Key = (purpose, tuple(ranks.flatten().tolist()), tuple(ranks.shape))
        numbers = range(ranks.ndim)
        groups = _SHARED.setdefault(world, {})
        if key not in groups:
            groups[key] = ProcessTransport.from_ranks(ranks, [str(number) for number in numbers])
        if dist.get_rank() not in key[1]:
            return None
        subsets = [chosen for length in numbers for chosen in combinations(numbers, length + 1)]
        made = groups[key]
        return cls({FLAT.join(names[i] for i in some): made.group(FLAT.join(map(str, some))) for some in subsets})

    def _timed(self, kind: str, axis: str, run: Callable[[], Tensor]) -> Tensor:
        began_s = time.monotonic()
        if self._watch is not None:
            self._watch.op = f"{kind} over {axis}"
        found = run()
        if self._watch is not None:
            self._watch.op = ""
            self._watch.waited_s += time.monotonic() - began_s
        return found

    def _alone(self, axis: str) -> bool:
        return dist.get_world_size(self.group(axis)) == 1

    def all_reduce(self, x: Tensor, axis: str, op: str) -> Tensor:
        run = partial(super().all_reduce, x, axis, op)
        return x.clone() if self._alone(axis) else self._timed("all_reduce", axis, run)

    def sum_in_place(self, x: Tensor, axis: str) -> Tensor:
        run = partial(super().sum_in_place, x, axis)
        return x if self._alone(axis) else self._timed("all_reduce", axis, run)

    def gather_into(self, out: Tensor, x: Tensor, axis: str) -> Tensor:
        run = partial(super().gather_into, out, x, axis)
        return out.copy_(x.view(out.shape)) if self._alone(axis) else self._timed("all_gather", axis, run)

    def scatter_into(self, out: Tensor, pieces: Tensor, axis: str) -> Tensor:
        run = partial(super().scatter_into, out, pieces, axis)
        return out.copy_(pieces.view(out.shape)) if self._alone(axis) else self._timed("reduce_scatter", axis, run)

    def all_gather(self, x: Tensor, axis: str) -> Tensor:
        run = partial(super().all_gather, x, axis)
        return x.clone()[None] if self._alone(axis) else self._timed("all_gather", axis, run)

    def reduce_scatter(self, pieces: Tensor, axis: str) -> Tensor:
        run = partial(super().reduce_scatter, pieces, axis)
        return pieces[0].clone() if self._alone(axis) else self._timed("reduce_scatter", axis, run)

    def all_to_all(self, pieces: Tensor, axis: str) -> Tensor:
        run = partial(super().all_to_all, pieces, axis)
        return pieces.clone() if self._alone(axis) else self._timed("all_to_all", axis, run)
