"""Maximum flow in whole numbers by Dinic's algorithm: level graphs and blocking flows."""

from __future__ import annotations

from collections import deque


class Network:
    """Arcs are stored in pairs: arc i and its reverse i ^ 1."""

    def __init__(self, nodes: int) -> None:
        self.arcs: list[list[int]] = [[] for _ in range(nodes)]
        self.head: list[int] = []
        self.room: list[int] = []

    def add(self, tail: int, head: int, capacity: int) -> None:
        if capacity <= 0:
            return
        self.arcs[tail].append(len(self.head))
        self.head.append(head)
        self.room.append(capacity)
        self.arcs[head].append(len(self.head))
        self.head.append(tail)
        self.room.append(0)

    def minimum_cut(self, source: int, sink: int) -> set[int]:
        """The smallest source side among all minimum cuts."""
        while True:
            level = self._levels(source)
            if level[sink] < 0:
                return {node for node, depth in enumerate(level) if depth >= 0}
            self._saturate(source, sink, level)

    def _levels(self, source: int) -> list[int]:
        level = [-1] * len(self.arcs)
        level[source] = 0
        queue = deque([source])
        while queue:
            node = queue.popleft()
            for arc in self.arcs[node]:
                if self.room[arc] > 0 and level[self.head[arc]] < 0:
                    level[self.head[arc]] = level[node] + 1
                    queue.append(self.head[arc])
        return level

    def _saturate(self, source: int, sink: int, level: list[int]) -> None:
        """Push along shortest paths until every one of them has a full arc."""
        following = [0] * len(self.arcs)
        path: list[int] = []
        node = source
        while True:
            if node == sink:
                least = min(self.room[arc] for arc in path)
                for arc in path:
                    self.room[arc] -= least
                    self.room[arc ^ 1] += least
                full = next(i for i, arc in enumerate(path) if self.room[arc] == 0)
                node = self.head[path[full] ^ 1]
                del path[full:]
            elif following[node] < len(self.arcs[node]):
                arc = self.arcs[node][following[node]]
                if self.room[arc] > 0 and level[self.head[arc]] == level[node] + 1:
                    path.append(arc)
                    node = self.head[arc]
                else:
                    following[node] += 1
            elif path:
                arc = path.pop()
                node = self.head[arc ^ 1]
                following[node] += 1
            else:
                return
