"""Which rank failed, and why: told through the job's store, so that the others can say so when they miss it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import torch.distributed as dist
from torch.distributed import Store  # type: ignore[attr-defined]

from meshwright.runtime.fail import LostError, is_lost
from meshwright.runtime.seal import opened, sealed

HEARD_S = 2.5
"""How long a rank that fails stays for the others to hear why: the store may go with it."""
PATIENCE_S = 10.0
"""How long ranks wait for one that failed and has neither ended nor gone on."""

_KEY = "fault"


@dataclass(frozen=True, slots=True)
class Fault:
    """A rank that failed, how much it had begun by then, and why."""

    rank: int
    begun: int
    text: str

    def __str__(self) -> str:
        return f"{self.rank} {self.begun} {self.text}"

    @classmethod
    def parse(cls, text: str) -> Fault:
        rank, begun, why = text.split(" ", 2)
        return cls(int(rank), int(begun), why)

    @property
    def heard(self) -> str:
        """The store counts there the ranks that know of it."""
        return f"heard/{self.rank}/{self.begun}"


class Blame:
    """One rank's part in it. begun: how much a rank has, as far as the store knows."""

    def __init__(self, store: Store, rank: int, world: int, begun: Callable[[int], int]) -> None:
        self._store, self.rank, self.world, self._begun = store, rank, world, begun
        self.fault: Fault | None = None
        self._since, self._lock = 0.0, threading.Lock()

    def judge(self, error: Exception, begun: int) -> LostError | None:
        """What to raise in place of an error that another rank is the cause of; None where it is this rank's own."""
        missed = is_lost(error)
        with suppress(RuntimeError, dist.DistError):  # without the store nobody knows
            if not missed and not (self.listen() and self._stands()):
                self._store.set(_KEY, sealed(_KEY, str(Fault(self.rank, begun, str(error) or type(error).__name__))))
            self._stay(self.listen)
            self._stay(self._all_heard)
        return self.lost() if missed else None

    def lost(self) -> LostError:
        if self.fault is None:
            return LostError(
                "a rank that this one talks to is gone", "every rank to go on", "see the launcher's message for which"
            )
        return LostError(f"rank {self.fault.rank} failed: {self.fault.text}")

    def listen(self) -> bool:
        """Whether a rank is known to have failed; that it is known here is told."""
        with self._lock:
            if self._store.check([_KEY]):
                told = opened(_KEY, self._store.get(_KEY))
                fault = None if told is None else Fault.parse(told)
                if fault is not None and fault != self.fault:
                    self.fault, self._since = fault, time.monotonic()
                    self._store.add(fault.heard, 1)
            return self.fault is not None

    def overdue(self) -> bool:
        """Whether another rank failed some time ago and stands where it did."""
        if not self.listen() or self.fault is None or self.fault.rank == self.rank:
            return False
        return time.monotonic() - self._since > PATIENCE_S and self._stands()

    def _stands(self) -> bool:
        return self.fault is not None and self._begun(self.fault.rank) <= self.fault.begun

    def _all_heard(self) -> bool:
        return self.fault is None or self._store.add(self.fault.heard, 0) >= self.world

    def _stay(self, until: Callable[[], bool]) -> None:
        deadline = time.monotonic() + HEARD_S
        while not until() and time.monotonic() < deadline:
            time.sleep(0.02)
