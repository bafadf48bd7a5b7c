"""Rotor: the fastest nested checkpointing of a chain within a budget.

The dynamic programme of Beaumont, Eyraud-Dubois, Herrmann, Joly and Shilova ("Optimal checkpointing for heterogeneous
chains"). Segments s..t, whose input lies in memory outside the budget m, take at least (`_Table`)

    C(s, t, m) = min of
        all:    forward_s + C(s + 1, t, m - saved_s) + backward_s
        split at s': forwards of s..s'-1 saving nothing + C(s', t, m - output_{s'-1}) + C(s, s' - 1, m)

where each is allowed only if its own steps fit: `all` if saved_s (its output included) and the temporaries of its
forward and backward do, `split` if two neighbouring outputs and the temporaries of a forward do. Gradients count
where their sizes are given, those of weights from their segment's backward on. A segment may be offered in several ways
to save (more bytes, shorter backward).
Optimal among orders in which a checkpoint stays until its segments' backward. Bytes are counted in `RESOLUTION` slots
of the budget, rounded up: what is found fits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from meshwright.planner.effort import RESOLUTION

Times = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Saving:
    """One way for a segment to run forward and save what its backward reads. bytes: output included."""

    backward_s: float
    bytes: int
    forward_transient_bytes: int = 0
    backward_transient_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Link:
    """A segment of the chain.

    output_bytes: read by the next one.
    gradient_bytes: of that output's gradient.
    transient_bytes: on top of input and output, in a forward that saves nothing.
    weight_bytes: of the gradients that its backward leaves until the step.
    once: it must not run forward a second time.
    """

    forward_s: float
    output_bytes: int
    savings: tuple[Saving, ...]
    transient_bytes: int = 0
    gradient_bytes: int = 0
    weight_bytes: int = 0
    once: bool = False


@dataclass(frozen=True, slots=True)
class Move:
    """One step of the order. `pass`: forward, nothing saved. `forward`: saving in the way `saving`. `backward`."""

    kind: str
    segment: int
    saving: int = 0

    def __str__(self) -> str:
        return f"{self.kind} {self.segment}"


@dataclass(frozen=True, slots=True)
class Order:
    """The fastest order found, and the seconds it takes."""

    seconds: float
    moves: tuple[Move, ...]


def rotor(chain: Sequence[Link], budget_bytes: int, input_bytes: int) -> Order | None:
    """The fastest nested order within the budget, the chain's input included; None where none fits."""
    room = budget_bytes - input_bytes
    if room < 0 or not chain:
        return None if chain else Order(0.0, ())
    slot = max(1, -(-room // RESOLUTION))
    table = _Table(chain, slot, room // slot)
    seconds = float(table.best[0, len(chain) - 1, -1])
    return Order(seconds, tuple(table.moves(0, len(chain) - 1, room // slot))) if np.isfinite(seconds) else None


class _Table:
    """best[s, t, m]: minimum seconds of s..t in m slots.

    how[s, t, m]: -1 - i for saving i of `all`, s' for a split.
    rest[s', t]: best[s', t] with the input of s' kept, which takes slots of its own.
    """

    def __init__(self, chain: Sequence[Link], slot: int, room: int) -> None:
        self.chain, self.slot, self.room = chain, slot, room
        n = len(chain)
        self.best = np.full((n, n, room + 1), np.inf)
        self.rest = np.full((n, n, room + 1), np.inf)
        self.how = np.zeros((n, n, room + 1), dtype=np.int32)
        self.ahead = np.concatenate([[0.0], np.cumsum([link.forward_s for link in chain])])
        self.left = [sum(link.weight_bytes for link in chain[k + 1 :]) for k in range(n)]
        self.pairs = [0, *(a.output_bytes + b.output_bytes + b.transient_bytes for a, b in pairwise(chain))]
        self.inputs = [0, *(self._slots(link.output_bytes) for link in chain)]
        for length in range(n):
            for s in range(n - length):
                self._fill(s, s + length)

    def _fill(self, s: int, t: int) -> None:
        kept = self._all(s, t)
        first = kept.argmin(axis=0)
        best, how = np.take_along_axis(kept, first[None], axis=0)[0], -1 - first
        last = next((k for k in range(s, t) if self.chain[k].once), t)  # the last segment that a split may begin with
        if last > s:
            passed = (self.ahead[s + 1 : last + 1] - self.ahead[s])[:, None]
            split = passed + self.rest[s + 1 : last + 1, t] + self.best[s, s:last]
            split[:, : self._pass_slots(s, t)] = np.inf
            cut = split.argmin(axis=0)
            seconds = np.take_along_axis(split, cut[None], axis=0)[0]
            better = seconds < best
            best[better], how[better] = seconds[better], s + 1 + cut[better]
        self.best[s, t], self.how[s, t] = best, how
        self.rest[s, t] = _shifted(best, self.inputs[s])

    def _all(self, s: int, t: int) -> Times:
        """For each saving of s, the seconds of s..t."""
        link = self.chain[s]
        end = self.chain[t].gradient_bytes + self.left[t]
        found = np.empty((len(link.savings), self.room + 1))
        for seconds, saving in zip(found, link.savings, strict=True):
            kept = self._slots(saving.bytes)
            forward = self._slots(saving.bytes + saving.forward_transient_bytes + end)
            backward = self._slots(saving.bytes + saving.backward_transient_bytes + link.gradient_bytes + self.left[s])
            least = min(max(kept, forward, backward), self.room + 1)
            seconds[:least] = np.inf
            after = self.best[s + 1, t, least - kept : self.room + 1 - kept] if s < t else 0.0
            np.add(after, link.forward_s + saving.backward_s, out=seconds[least:])
        return found

    def _pass_slots(self, s: int, t: int) -> int:
        """Room for the forwards of s..t-1 that save nothing: two neighbouring outputs at a time."""
        most = max(self.chain[s].output_bytes + self.chain[s].transient_bytes, max(self.pairs[s + 1 : t], default=0))
        return self._slots(most + self.chain[t].gradient_bytes + self.left[t])

    def _slots(self, size: int) -> int:
        return -(-size // self.slot)

    def moves(self, s: int, t: int, room: int) -> Iterator[Move]:
        how = int(self.how[s, t, room])
        if how < 0:
            saving = self.chain[s].savings[-1 - how]
            yield Move("forward", s, -1 - how)
            if s < t:
                yield from self.moves(s + 1, t, room - self._slots(saving.bytes))
            yield Move("backward", s)
        else:
            yield from (Move("pass", k) for k in range(s, how))
            yield from self.moves(how, t, room - self.inputs[how])
            yield from self.moves(s, how - 1, room)


def _shifted(times: Times, by: int) -> Times:
    """The table with `by` slots fewer."""
    if by >= len(times):
        return np.full(len(times), np.inf)
    return np.concatenate([np.full(by, np.inf), times[: len(times) - by]])
