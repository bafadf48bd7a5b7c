"""The fast path of the clock: the step of one stage, with gathers and reductions that overlap compute.

The runtime has one lane for gathers of parameters and reductions of gradients (`runtime.weights.overlap`), which runs
them in order while segments compute. A gather begins before the segment that precedes its use, and is waited for at its
use. Gradients of a segment leave in parts while its backward runs. While a segment's own collectives use the same
links, the lane rests. On a CPU host the cores that compute carry gathers and reductions too, and nothing is hidden.
On a GPU the host launches kernels ahead of the device, and a step takes the longer of the two.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from operator import is_
from typing import NamedTuple

from meshwright.caches import CACHES
from meshwright.plan import FrontierPoint
from meshwright.price.parameter import chain_uses


def overlapped(points: Sequence[FrontierPoint], microbatches: int = 1) -> float:
    """The step of consecutive segments in seconds, with only the part of overlappable work that is waited for."""
    return max(_device_seconds(points, microbatches), host_seconds(points, microbatches))


def _device_seconds(points: Sequence[FrontierPoint], microbatches: int) -> float:
    if any(point.core_driven_comm_s for point in points):
        if not any(point.async_comm_s for point in points):
            return sum(point.seconds(microbatches) for point in points)
        points = _hidden(points)
    return _played(points, microbatches).seconds + sum(point.step_s for point in points)


def _hidden(points: Sequence[FrontierPoint]) -> list[FrontierPoint]:
    """Points of which only what compute can hide counts as overlappable."""
    return [replace(point, overlappable_s=point.async_comm_s) for point in points]


def host_seconds(points: Sequence[FrontierPoint], microbatches: int = 1) -> float:
    """Seconds that the host needs to launch a step; zero on a CPU."""
    each_s = sum(point.forward_host_s + point.backward_host_s for point in points)
    return microbatches * each_s + sum(point.step_host_s for point in points)


def host_waits_s(points: Sequence[FrontierPoint], microbatches: int = 1) -> float:
    """Seconds of a step in which the device waits for launches."""
    return max(0.0, host_seconds(points, microbatches) - _device_seconds(points, microbatches))


def pending_grad_bytes(points: Sequence[FrontierPoint], microbatches: int = 1) -> int:
    """The largest sum of prefetched parameters and pending gradients of other segments while one runs.

    A segment's own parameters and gradients are in its transient bytes.
    """
    if not any(point.overlappable_s for point in points):
        return 0
    if not any(point.core_driven_comm_s for point in points):
        return _played(points, microbatches).pending_grad_bytes
    hidden_bytes = (
        _played(_hidden(points), microbatches).pending_grad_bytes if any(point.async_comm_s for point in points) else 0
    )
    return hidden_bytes + carried_bytes(points, microbatches)


def carried_bytes(points: Sequence[FrontierPoint], microbatches: int = 1) -> int:
    """`pending_grad_bytes` of what compute cores carry.

    It keeps pace with compute, so during a run the next one's parameters and the previous one's gradients are there.
    """
    prefetched = [point.prefetched_param_bytes if point.core_driven_comm_s else 0 for point in points]
    pending = [point.pending_grad_bytes if point.core_driven_comm_s else 0 for point in points]
    forwards = [*prefetched[1:], 0]
    if microbatches > 1:
        forwards[0] += pending[0]
    backwards = [before + after for before, after in zip([0, *prefetched[:-1]], [*pending[1:], 0], strict=True)]
    return max([*forwards, *backwards])


class _Played(NamedTuple):
    """The end of the step, and the largest bytes pending on the way."""

    seconds: float
    pending_grad_bytes: int


_last: list[tuple[tuple[FrontierPoint, ...], int, _Played]] = CACHES.own([])
"""What was played last: seconds and bytes are asked for one after the other."""


def _played(points: Sequence[FrontierPoint], microbatches: int) -> _Played:
    for known, count, found in _last:
        if count == microbatches and len(known) == len(points) and all(map(is_, known, points)):
            return found
    found = _Lane(points, microbatches).play()
    _last[:] = [(tuple(points), microbatches, found), *_last[:3]]
    return found


class _Way(NamedTuple):
    """Of one run: seconds of its gather, of the reduction after each micro-batch and of that after the last: those that
    overlap compute, and those waited for."""

    gather_hidden_s: float = 0.0
    gather_s: float = 0.0
    scatter_hidden_s: float = 0.0
    reduce_per_microbatch_s: float = 0.0
    reduce_hidden_s: float = 0.0
    reduce_s: float = 0.0


class _Rests(NamedTuple):
    """A run from now_s on that lasts `seconds`, during which the lane rests.

    wire_s: seconds of the run's collectives on the lane's links, spread evenly over it.
    """

    now_s: float
    seconds: float
    wire_s: float

    def until(self, done_s: float) -> float:
        """When what would have been done then is done."""
        left_s = done_s - self.now_s
        if left_s <= 0:
            return done_s
        computes_s = self.seconds - self.wire_s
        return done_s + (self.wire_s if left_s >= computes_s else self.wire_s * left_s / computes_s)

    def put_off(self, waiting: deque[tuple[float, int]], shift: float) -> float:
        """What waits, in its order, is done later: a new shift for all, and what is done during the run by itself."""
        after_s = self.now_s + self.seconds - self.wire_s
        for place in range(len(waiting)):
            done_s = waiting[place][0] + shift
            if done_s >= after_s:
                break
            waiting[place] = (self.until(done_s) - shift - self.wire_s, waiting[place][1])
        return shift + self.wire_s


class _Lane:
    """Plays all forwards and backwards in order (`schedule.one_stage`), and the lane that overlaps them.

    now_s: end of the last run, with everything that was waited for.
    lane_s: when the lane is free.
    ready_s: when the parameters of the next two runs are there.
    early_s: how long before the end of a run its first gradients leave.

    Gradients leave in equal parts at even steps, or after the backward where it has collectives on the lane's links.
    Micro-batches between the first and the last are equal: once two in a row leave the same state, the rest is skipped.
    """

    def __init__(self, points: Sequence[FrontierPoint], microbatches: int) -> None:
        count = len(points)
        self.points, self.microbatches = points, microbatches
        self.chain = [*range(count), *reversed(range(count))]
        self.now_s = self.lane_s = 0.0
        self.ready_s = (0.0, 0.0)
        self.waiting: deque[tuple[float, int]] = deque()  # the lane ends in the order it began; `shift` is to be added
        self.shift = 0.0
        self.held = self.most = 0
        self.seconds = [points[i].forward_s if k < count else points[i].backward_s for k, i in enumerate(self.chain)]
        self.wire_s = [
            points[i].forward_wire_s if k < count else points[i].backward_wire_s for k, i in enumerate(self.chain)
        ]
        self.early_s = [
            0.0 if k < count or self.wire_s[k] else points[i].backward_s * (1 - 1 / points[i].grad_buckets)
            for k, i in enumerate(self.chain)
        ]
        early = [points[i].prefetched_param_bytes if points[i].overlappable_s else 0 for i in self.chain[1:]]
        self.early = [0 if k == count - 1 else size for k, size in enumerate([*early, 0])]
        self.ways: dict[tuple[bool, bool], list[_Way]] = {}

    def _ways(self, first: bool, last: bool) -> list[_Way]:
        """Of every run of a micro-batch; segments with the same point run alike, but for those at the ends."""
        count, found = len(self.points), list[_Way]()
        known: dict[tuple[int, bool, int], _Way] = {}
        for k, index in enumerate(self.chain):
            place = index if index in (0, count - 1) else -1
            key = (id(self.points[index]), k < count, place)
            if key not in known:
                known[key] = self._way(k, index, first, last)
            found.append(known[key])
        return found

    def _way(self, k: int, index: int, first: bool, last: bool) -> _Way:
        point = self.points[index]
        gather_s = self._gather_s(k, index, first, last)
        hidden_s = (
            gather_s * max(0.0, point.overlappable_s - point.reduce_grads_s) / point.gather_params_s
            if gather_s
            else 0.0
        )
        if k < len(self.points):
            return _Way(hidden_s, gather_s - hidden_s)
        share = min(1.0, point.overlappable_s / point.reduce_grads_s) if point.reduce_grads_s else 0.0
        reduce_per_microbatch_s = point.reduce_per_microbatch_s / self.microbatches
        reduce_s = point.reduce_grads_s - point.reduce_per_microbatch_s if last else 0.0
        sides = [seconds * part for seconds in (reduce_per_microbatch_s, reduce_s) for part in (share, 1.0 - share)]
        return _Way(hidden_s, gather_s - hidden_s, *sides)

    def _gather_s(self, k: int, index: int, first: bool, last: bool) -> float:
        """A run's gather. What is gathered once a step has the first; what is gathered again, all but those of a
        segment that has just run, and of backwards that read no parameter, unless a forward follows that does."""
        point, count = self.points[index], len(self.points)
        if not point.gather_params_s:
            return 0.0
        if not point.gather_per_use_s:
            return point.gather_params_s if first and k < count else 0.0
        if k == count or (k == 0 and not first):
            return 0.0
        if k > count and point.lookup and (index or last):
            return 0.0
        uses = chain_uses((index,), count, self.microbatches, (index,) if point.lookup else ())
        return point.gather_params_s / round(2 * self.microbatches * uses)

    def play(self) -> _Played:
        self.now_s += self._begin(self.of(0)[0], 0)
        self.now_s += self._begin(self.of(0)[1], 1)
        number, alike, before = 0, 0, self._state(0.0)
        while number < self.microbatches:
            began_s = self.now_s
            self._run(number)
            number += 1
            state = self._state(began_s)
            alike = alike + 1 if number > 2 and _is_close(state, before) else 0
            before = state
            if alike > 1 and number < self.microbatches - 1 and self.lane_s - self.now_s <= self.now_s - began_s:
                self._skip((self.microbatches - 1 - number) * (self.now_s - began_s))
                number = self.microbatches - 1
        return _Played(max(self.now_s, self.lane_s), self.most)

    def of(self, number: int) -> list[_Way]:
        """What runs in the micro-batch of this number."""
        key = (number == 0, number == self.microbatches - 1)
        if key not in self.ways:
            self.ways[key] = self._ways(*key)
        return self.ways[key]

    def _begin(self, way: _Way, place: int) -> float:
        """A gather, on the lane; seconds that have to be waited for at once."""
        ready_s = 0.0
        if way.gather_hidden_s:
            ready_s = self.lane_s = max(self.lane_s, self.now_s) + way.gather_hidden_s
        self.ready_s = (ready_s, self.ready_s[1]) if place == 0 else (self.ready_s[0], ready_s)
        return way.gather_s

    def _run(self, number: int) -> None:
        """One micro-batch."""
        ways = self.of(number)
        following = self.of(number + 1)[:2] if number + 1 < self.microbatches else [_NOTHING] * 2
        now_s, lane_s, held, most = self.now_s, self.lane_s, self.held, self.most
        ready_s, next_s = self.ready_s
        waiting, points, chain, shift = self.waiting, self.points, self.chain, self.shift
        for k, (way, then) in enumerate(zip(ways, [*ways[2:], *following], strict=True)):
            now_s = max(now_s, ready_s)
            if lane_s > now_s and self.wire_s[k]:
                rests = _Rests(now_s, self.seconds[k], self.wire_s[k])
                lane_s, next_s = rests.until(lane_s), rests.until(next_s)
                shift = rests.put_off(waiting, shift)
            now_s = done_s = now_s + self.seconds[k]
            ready_s, next_s = next_s, 0.0
            leaves_s = way.scatter_hidden_s
            early = self.early_s[k] and leaves_s + way.reduce_hidden_s > 0
            if early:
                leaves_s += way.reduce_hidden_s
                reduce_grads_s = now_s + leaves_s / points[chain[k]].grad_buckets
                done_s = lane_s = max(max(lane_s, now_s - self.early_s[k]) + leaves_s, reduce_grads_s)
            elif leaves_s:
                done_s = lane_s = max(lane_s, now_s) + leaves_s
            now_s += way.reduce_per_microbatch_s
            if then.gather_hidden_s:
                next_s = lane_s = max(lane_s, now_s) + then.gather_hidden_s
            now_s += then.gather_s
            if way.reduce_hidden_s and not early:
                done_s = lane_s = max(lane_s, now_s) + way.reduce_hidden_s
            now_s += way.reduce_s
            waited_s = way.reduce_per_microbatch_s + then.gather_s + way.reduce_s
            while waiting and waiting[0][0] + shift <= now_s - (self.seconds[k] + waited_s):
                held -= waiting.popleft()[1]
            most = max(most, self.early[k] + held)
            if done_s > now_s:
                late = points[chain[k]].pending_grad_bytes
                waiting.append((done_s - shift, late))
                held += late
        self.now_s, self.lane_s, self.held, self.most = now_s, lane_s, held, most
        self.ready_s, self.shift = (ready_s, next_s), shift

    def _state(self, began_s: float) -> tuple[float, ...]:
        """What the next micro-batch finds, and how long this one took."""
        after = (self.lane_s, *self.ready_s)
        return (self.now_s - began_s, *(max(0.0, one - self.now_s) for one in after))

    def _skip(self, seconds: float) -> None:
        self.now_s, self.lane_s = self.now_s + seconds, self.lane_s + seconds
        self.ready_s = self.ready_s[0] + seconds, self.ready_s[1] + seconds
        self.shift += seconds


_NOTHING = _Way()

SAME = 1e-13
"""Of a micro-batch's seconds: rounding."""


def _is_close(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return all(abs(a - b) <= SAME * one[0] for a, b in zip(one, other, strict=True))
