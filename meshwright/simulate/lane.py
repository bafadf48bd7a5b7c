"""A lane that overlaps a stage's compute: gathers and reductions, or copies, in the order in which they are begun."""

from __future__ import annotations

from collections import deque


class Lane:
    """Jobs are numbers; `over` and `began` say when each is done and was taken up. held: bytes that a job gives back
    at its end. A job's end may yet move: what overlaps it can take the lane's links for a while (`rest`)."""

    def __init__(self) -> None:
        self.free_s = 0.0
        self.began: dict[int, float] = {}
        self.over: dict[int, float] = {}
        self.held: dict[int, int] = {}
        self._waiting: deque[int] = deque()

    def begin(self, job: int, now_s: float, seconds: float, held: int = 0) -> None:
        self._take(job, max(self.free_s, now_s), max(self.free_s, now_s) + seconds, held)

    def taken(self, now_s: float, seconds: float) -> float:
        """Another lane's job has this one for so many seconds, from when it is free: when that is."""
        began_s = max(self.free_s, now_s)
        self.free_s = began_s + seconds
        return began_s

    def leave(self, job: int, began_s: float, end_s: float, seconds: float, parts: int, held: int = 0) -> None:
        """So many equal parts, begun at even steps of what runs from began_s to end_s, the last at its end: the first
        part holds up all that follow, or the last one sets out alone."""
        first_s = max(self.free_s, began_s + (end_s - began_s) / parts)
        self._take(job, first_s, max(first_s + seconds, end_s + seconds / parts), held)

    def _take(self, job: int, began_s: float, over_s: float, held: int) -> None:
        self.began[job], self.over[job], self.free_s = began_s, over_s, over_s
        self._waiting.append(job)
        if held:
            self.held[job] = held

    def rest(self, now_s: float, seconds: float, wire_s: float) -> None:
        """A run that begins now has wire_s of collectives on the lane's links, spread over its seconds: meanwhile the
        lane rests."""
        if self.free_s <= now_s:
            self._waiting.clear()
            return
        while self._waiting and self.over[self._waiting[0]] <= now_s:
            self._waiting.popleft()
        for job in self._waiting:
            self.began[job] = _put_off(self.began[job], now_s, seconds, wire_s)
            self.over[job] = _put_off(self.over[job], now_s, seconds, wire_s)
        self.free_s = _put_off(self.free_s, now_s, seconds, wire_s)

    def returned(self) -> list[tuple[float, int]]:
        """When which bytes were given back."""
        return [(self.over[job], -held) for job, held in self.held.items()]


def _put_off(at_s: float, now_s: float, seconds: float, wire_s: float) -> float:
    """When what would have been done at at_s is done."""
    left_s, computes_s = at_s - now_s, seconds - wire_s
    if left_s <= 0:
        return at_s
    return at_s + (wire_s if left_s >= computes_s else wire_s * left_s / computes_s)
