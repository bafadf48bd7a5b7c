"""What overlaps a stage's compute: a lane of gathers and reductions, or copies, in the order in which they are begun;
and messages on the wire at the same time, of which those that share a link each get an equal part of it.
"""

from __future__ import annotations

from collections import deque
from heapq import heappush


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


Event = tuple[float, int, int, int]
"""When, begins (0) or ends (1), the message, and which forecast of its end this is."""


class Wires:
    """A message advances at 1/n of its speed, n the most users of any of its links."""

    def __init__(self, links: list[tuple[str, ...]], seconds: list[float], heap: list[Event]) -> None:
        self.links, self.left_s, self.heap = links, list(seconds), heap
        self.users: dict[str, set[int]] = {}
        self.speed: dict[int, float] = {}
        self.since_s: dict[int, float] = {}
        self.forecast: dict[int, int] = {}

    def begin(self, message: int, now_s: float) -> None:
        self.speed[message], self.since_s[message] = 0.0, now_s
        for link in self.links[message]:
            self.users.setdefault(link, set()).add(message)
        self._again(message, now_s)

    def end(self, message: int, now_s: float) -> None:
        del self.speed[message]
        for link in self.links[message]:
            self.users[link].discard(message)
        self._again(message, now_s)

    def current(self, message: int, forecast: int) -> bool:
        return message in self.speed and self.forecast[message] == forecast

    def _again(self, message: int, now_s: float) -> None:
        """Forecast anew the ends of all that share a link with the message."""
        for other in sorted({other for link in self.links[message] for other in self.users[link]}):
            self.left_s[other] -= (now_s - self.since_s[other]) * self.speed[other]
            self.since_s[other] = now_s
            self.speed[other] = 1.0 / max(len(self.users[link]) for link in self.links[other])
            self.forecast[other] = self.forecast.get(other, 0) + 1
            end_s = now_s + max(0.0, self.left_s[other]) / self.speed[other]
            heappush(self.heap, (end_s, 1, other, self.forecast[other]))
