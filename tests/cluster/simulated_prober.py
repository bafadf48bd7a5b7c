"""A Prober over a cluster whose truth is known: fair shares on every link, and noise."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

from meshwright.cluster import Cluster, Group, collective_s
from meshwright.cluster.detect.probe import RankInfo


class SimulatedProber:
    """Ranks are numbered in tree order. A flow leaves and enters every group that does not hold both its ends."""

    def __init__(self, truth: Cluster, noise: float = 0.03, repeats: int = 5) -> None:
        self.truth, self.noise, self.repeats = truth, noise, repeats
        self.random = random.Random(0)
        self.probes = 0
        self.largest_bytes = 1 << 26
        self.groups: set[tuple[int, ...]] = set()
        self.paths: list[list[tuple[int, int, object]]] = []  # per rank, innermost first: (group, child, link)
        self._walk(truth.root, [])
        self.ranks: Sequence[RankInfo] = [
            RankInfo(f"host{self._host(rank)}", name, "cpu", 8 << 30, 1e10, 1e-6, (("float32", 1e11),))
            for rank, name in enumerate(truth.device_names())
        ]

    def _walk(self, group: Group, outer: list[tuple[int, int, object]]) -> None:
        group_id = self.random.getrandbits(60)
        for child, link in group.children():
            path = [(group_id, self.random.getrandbits(60), link), *outer]
            if isinstance(child, str):
                self.paths.append(path)
            else:
                self._walk(child, path)

    def _host(self, rank: int) -> int:
        depth = self.truth.root.levels().index("host")
        hosts = list(dict.fromkeys(path[depth][0] for path in self.paths))
        return hosts.index(self.paths[rank][depth][0])

    def _links(self, a: int, b: int) -> list[tuple[object, float]]:
        """Resources a flow uses, as (identity, capacity): uplinks of both ends up to where they meet.

        As in the cost model, the innermost link is not on the way out of a host.
        """
        meet = next(d for d, (x, y) in enumerate(zip(self.paths[a], self.paths[b], strict=True)) if x[0] == y[0])
        used: list[tuple[object, float]] = []
        for depth in range(meet + 1) if meet == 0 else range(1, meet + 1):
            for end, way in ((a, "out"), (b, "in")):
                group, child, link = self.paths[end][depth]
                if link.shared:  # type: ignore[attr-defined]
                    used.append((group, link.total_bandwidth))  # type: ignore[attr-defined]
                else:
                    used.append(((child, way), link.total_bandwidth))  # type: ignore[attr-defined]
        return list(dict(used).items())

    def _noisy(self, seconds: float) -> list[float]:
        return [seconds * (1 + self.random.uniform(0, self.noise)) for _ in range(self.repeats)]

    def flows(self, pairs: Sequence[tuple[int, int]], n_bytes: int) -> list[list[float]]:
        self.probes += 1
        load = Counter(resource for pair in pairs for resource, _ in self._links(*pair))
        out = []
        for a, b in pairs:
            share = min(capacity / load[resource] for resource, capacity in self._links(a, b))
            depth = next(d for d, (x, y) in enumerate(zip(self.paths[a], self.paths[b], strict=True)) if x[0] == y[0])
            one_link = self.paths[a][depth][2].bandwidth if depth else share  # type: ignore[attr-defined]
            out.append(self._noisy(1e-4 + n_bytes / min(share, one_link)))
        return out

    def round_trip(self, pair: tuple[int, int]) -> list[float]:
        a, b = (self.paths[end] for end in pair)
        link = next(x[2] for x, y in zip(a, b, strict=True) if x[0] == y[0])
        return self._noisy(2 * link.latency_s)  # type: ignore[attr-defined]

    def collective(self, kind: str, ranks: Sequence[int], n_bytes: int) -> list[float]:
        self.groups.add(tuple(ranks))
        return self._noisy(collective_s(kind, n_bytes, self.truth.mesh((len(ranks),), ranks=ranks).axes[0]))
