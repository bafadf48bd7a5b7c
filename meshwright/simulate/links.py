"""Messages on the wire at the same time: those that share a link each get an equal part of it."""

from __future__ import annotations

from heapq import heappush

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
