"""Which ranks of the job are there: each has a heartbeat in the job's store, and looks at those of its neighbours.

Two threads a process. One talks to the store and may be kept waiting there for good, where the store is in a rank that
stands still. The other has a clock, asks nobody, and ends the process when it has waited too long. What it knows by
then of the others, the message tells: rank, host and what the rank was at.
"""

from __future__ import annotations

import atexit
import os
import socket
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Any, NoReturn, Protocol
from weakref import WeakKeyDictionary, WeakSet, ref

import torch.distributed as dist
from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]

from meshwright.cluster.detect.lead import restart_count
from meshwright.runtime.fail import LOST
from meshwright.runtime.job.tether import tell_place
from meshwright.runtime.seal import opened, sealed
from meshwright.torch_compat import own_store

LATE = 3
"""The exit code of a rank that gave up waiting."""
LAST_LOOK_S = 5.0
"""How long the end of a process waits for its thread to come back from the store."""
NEIGHBOURS = 8
"""How many ranks each looks at: those after it, in a ring. Somebody looks at every rank, however many there are."""
SHORTEST_S = 5.0
"""A rank that is busy elsewhere may miss its beats for a moment."""
LEFT = -2
"""The beat of a rank that has come to its end: nobody waits for another."""
TELLING_S = 1.0
"""How long a rank that ends tries to tell the others why."""


class Clock(Protocol):
    """What is looked at with each turn of a thread: `talk` may wait for the store, `tick` must not wait."""

    busy: bool
    since_s: float

    def talk(self) -> None: ...
    def tick(self, paused_s: float) -> None: ...
    def place(self) -> str: ...


@dataclass(slots=True)
class Seen:
    """What is known of another rank: its last beat, when that came by our clock, where it was, on which host."""

    beat: int
    since_s: float
    host: str = ""
    place: str = ""

    def __str__(self) -> str:
        return f"on {self.host}, at `{self.place}`" if self.host else "never"


class Presence:
    """This process's heartbeat, and what it has heard of its neighbours."""

    def __init__(self, store: Store, rank: int, world: int, timeout_s: float, *, beats: bool, held_by: int | None):
        self.rank, self.world, self.timeout_s, self.beats, self.held_by = rank, world, timeout_s, beats, held_by
        self.store, self.host, self.phase = store, socket.gethostname(), "starting"
        self.watches: WeakSet[Clock] = WeakSet()
        now_s = time.monotonic()
        after = [(rank + step) % world for step in range(1, min(world, NEIGHBOURS + 1))]
        self.seen = {other: Seen(-1, now_s) for other in after}
        self.answered_s, self.verdict = now_s, ""
        self.group: ref[dist.ProcessGroup] | None = None
        self._beat = 0
        self._over = threading.Event()
        every_s = min(1.0, timeout_s / 5)
        threads = [threading.Thread(target=run, args=(every_s,), daemon=True) for run in (self._talk, self._tick)]
        for thread in threads:
            thread.start()
        atexit.register(self._rest, threads)
        tell_place(self.place)

    def place(self) -> str:
        """What this rank is at."""
        found: list[Clock] = sorted(self.watches, key=lambda watch: (watch.busy, watch.since_s))
        return found[-1].place() if found else self.phase

    def _goes_on(self) -> bool:
        """Until the group is given up; a rank whose interpreter ends comes to `_rest`."""
        if self.group is not None and self.group() is not dist.group.WORLD:
            self._over.set()
        return not self._over.is_set()

    def _rest(self, threads: Iterable[threading.Thread]) -> None:
        """A thread that comes back from the store while the interpreter goes down would take the process with it."""
        self._over.set()
        for thread in threads:
            thread.join(LAST_LOOK_S)

    def _talk(self, every_s: float) -> None:
        while self._goes_on():
            with suppress(RuntimeError, dist.DistError, ValueError):
                self._exchange()
                for watch in tuple(self.watches):
                    watch.talk()
                self.answered_s = time.monotonic()
            self._over.wait(every_s)
        with suppress(RuntimeError, dist.DistError):
            self._say(f"{LEFT} {self.host} its end")

    def _exchange(self) -> None:
        """Tell the others of this rank, and hear of them."""
        if self.beats:
            self._beat += 1
            self._say(f"{self._beat} {self.host} {self.place()}")
            for other in self.seen:
                self._hear(other)
        if self.store.check(["verdict"]):
            self.verdict = opened("verdict", self.store.get("verdict")) or ""

    def _say(self, text: str) -> None:
        if self.beats:
            name = f"beat/{self.rank}"
            self.store.set(name, sealed(name, text))

    def _hear(self, other: int) -> None:
        name = f"beat/{other}"
        text = opened(name, self.store.get(name)) if self.store.check([name]) else None
        if text is None:  # not there yet, or not from a rank of the job
            return
        beat, host, place = text.split(" ", 2)
        if int(beat) != self.seen[other].beat:
            self.seen[other] = Seen(int(beat), time.monotonic(), host, place)

    def _tick(self, every_s: float) -> None:
        before_s = time.monotonic()
        while self._goes_on() and not self._over.wait(every_s):
            now_s = time.monotonic()
            paused_s, before_s = now_s - before_s - every_s, now_s
            paused_s = paused_s if paused_s > max(1.0, every_s) else 0.0  # this process stood still: nobody was late
            self.answered_s += paused_s
            for seen in self.seen.values():
                seen.since_s += paused_s
            if self.verdict:
                time.sleep(TELLING_S)
                os._exit(LOST)
            self._judge(now_s)
            for watch in tuple(self.watches):
                watch.tick(paused_s)

    def _judge(self, now_s: float) -> None:
        most_s = max(SHORTEST_S, self.timeout_s)
        if not self.beats:
            return
        if now_s - self.answered_s > most_s:
            if self.held_by not in (None, self.rank):
                self.give_up(self._silent({self.held_by or 0}, ", which holds the job's store"))
            return  # others cannot be heard; the launcher holds the store, and may stand still
        silent = {r for r, seen in self.seen.items() if seen.beat != LEFT and now_s - seen.since_s > most_s}
        if silent:
            self.give_up(self._silent(silent))

    def _silent(self, ranks: Iterable[int], what: str = "") -> str:
        lines = [f"rank {self.rank} on {self.host} has heard nothing for {max(SHORTEST_S, self.timeout_s):.0f} s of"]
        lines += [f"rank {rank}{what}: last heard of {self.seen.get(rank, Seen(-1, 0.0))}" for rank in sorted(ranks)]
        lines.append(f"rank {self.rank} is at `{self.place()}`")
        lines.append("to do: see what these ranks do; MESHWRIGHT_TIMEOUT_S sets how long others wait")
        return "\n  ".join(lines)

    def host_of(self, rank: int) -> str:
        found = self.host if rank == self.rank else self.seen.get(rank, Seen(-1, 0.0)).host
        return f" on {found}" if found else ""

    def give_up(self, message: str) -> NoReturn:
        """End this process, with a message unless another rank has one, and let the others know."""
        first: list[bool] = []
        teller = threading.Thread(target=self._leave_word, args=(message, first), daemon=True)
        teller.start()
        teller.join(TELLING_S)
        if not first:  # the store says nothing: those after the first of us wait for it
            time.sleep(min(4, self.rank) * TELLING_S / 2)
        if not first or first[0]:
            print(f"meshwright: {message}", file=sys.stderr, flush=True)
        os._exit(LATE)

    def _leave_word(self, message: str, first: list[bool]) -> None:
        with suppress(RuntimeError, dist.DistError):
            told = self.store.add("told", 1) == 1
            if told:
                self.store.set("verdict", sealed("verdict", message))
            first.append(told)


_PRESENT: WeakKeyDictionary[dist.ProcessGroup, Presence] = WeakKeyDictionary()


_EARLY: list[Presence] = []
"""What was begun before there was a group to name it by, the last of it."""
_GENERATIONS = count(1)


def early_presence(store: Any, rank: int, world: int, timeout_s: float) -> Presence:
    """Begun before ranks have their default group, over a store that they will use for it."""
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]

    named = PrefixStore(_prefix(), store.clone() if hasattr(store, "clone") else store)
    _EARLY[:] = [Presence(named, rank, world, timeout_s, beats=True, held_by=_store_rank())]
    return _EARLY[0]


def presence_of(timeout_s: float) -> Presence:
    """Of the default group, begun where it was not."""
    group = dist.group.WORLD
    assert group is not None
    if group not in _PRESENT:
        _PRESENT[group] = _EARLY.pop() if _EARLY else _begin(timeout_s)
        _PRESENT[group].group = ref(group)
    found = _PRESENT[group]
    found.timeout_s = max(timeout_s, found.timeout_s) if found.watches else timeout_s
    return found


def _begin(timeout_s: float) -> Presence:
    store = own_store(_prefix())
    over_tcp = isinstance(store.underlying_store, TCPStore)  # a store in a file would grow with every beat
    return Presence(store, dist.get_rank(), dist.get_world_size(), timeout_s, beats=over_tcp, held_by=_store_rank())


def _store_rank() -> int | None:
    """The rank that holds the job's store, unless its launcher does."""
    return None if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" else 0


def _prefix() -> str:
    """Of the n-th group that this process is in, after so many restarts: what earlier ones left is not read."""
    return f"meshwright/presence/{restart_count()}/{next(_GENERATIONS)}"
