"""The cheapest way from one layout to another: Dijkstra over all layouts of a tensor on a mesh.

Nodes are layouts. An edge is one Step; its length is the seconds of what it runs forward plus, for values with
a gradient, of what its dual runs backward:

    length(u -> v) = forward_s(u, v) + backward_s(u, v)       (grad)        forward_s(u, v)      (no grad)

Lengths depend on the mesh, the tensor's shape and its item size, which make the cache key. The search from one
source is kept and resumed, so asking for every target costs one search. `moves` lists the edges, `price_step`
prices one, `_Search.reach` is the algorithm.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from functools import lru_cache
from math import inf

from meshwright.cluster.mesh import Mesh
from meshwright.layout.moves import moves
from meshwright.layout.states import Layout, all_layouts
from meshwright.layout.stepprice import StepPrice, price_step
from meshwright.layout.steps import Collective, Step


@dataclass(frozen=True, slots=True)
class Conversion:
    """A priced path. `forward` and `backward` list the collectives one rank runs, in the order it runs them.

    Seconds include local copies. `transient_bytes` is the most that one rank allocates at a time on top of the
    tensor it starts from (the value forward, the incoming gradient backward), the result included.
    """

    source: Layout
    target: Layout
    steps: tuple[Step, ...] = ()
    forward: tuple[Collective, ...] = ()
    backward: tuple[Collective, ...] = ()
    forward_s: float = 0.0
    backward_s: float = 0.0
    transient_bytes: int = 0

    @property
    def total_s(self) -> float:
        return self.forward_s + self.backward_s

    def __str__(self) -> str:
        head = f"{self.source} -> {self.target}: {self.forward_s:.3g} s forward, {self.backward_s:.3g} s backward"
        return "\n  ".join([head, *map(str, self.steps)])


@lru_cache(maxsize=1 << 20)
def conversion(
    source: Layout, target: Layout, shape: tuple[int, ...], itemsize: int, mesh: Mesh, grad: bool = True
) -> Conversion:
    """The cheapest conversion of a tensor of global `shape`. Without `grad`, R and I are the same."""
    target.check(shape, mesh.sizes)
    return _search(source, shape, itemsize, mesh, grad).reach(target)


class _Graph:
    """Layouts by number (numbers compare and index faster than layouts) and priced edges, made when asked for."""

    def __init__(self, shape: tuple[int, ...], itemsize: int, mesh: Mesh, grad: bool) -> None:
        self.shape, self.itemsize, self.mesh, self.grad = shape, itemsize, mesh, grad
        self.layouts = all_layouts(len(shape), len(mesh.axes))
        self.number = {layout: number for number, layout in enumerate(self.layouts)}
        self._edges: list[list[tuple[float, int, Step, StepPrice]] | None] = [None] * len(self.layouts)

    def edges(self, number: int) -> list[tuple[float, int, Step, StepPrice]]:
        found = self._edges[number]
        if found is None:
            found = self._edges[number] = []
            for step in moves(self.layouts[number], self.shape, self.mesh.sizes):
                price = price_step(step, self.shape, self.itemsize, self.mesh, self.grad)
                found.append((price.total_s, self.number[step.target], step, price))
        return found


class _Search:
    """Dijkstra from one source, resumed where it stopped when a further target is asked for."""

    def __init__(self, source: Layout, graph: _Graph) -> None:
        self.graph, self.source = graph, source
        start, n = graph.number[source], len(graph.layouts)
        self._settled = [False] * n
        self._best = [(inf, 0)] * n  # seconds, then steps: ties go to fewer steps
        self._best[start] = (0.0, 0)
        self._last: list[tuple[int, Step, StepPrice] | None] = [None] * n
        self._heap = [(0.0, 0, start)]

    def reach(self, target: Layout) -> Conversion:
        number = self.graph.number[target]
        while not self._settled[number]:
            length_s, n_steps, nearest = heapq.heappop(self._heap)
            if not self._settled[nearest]:
                self._settled[nearest] = True
                self._relax(length_s, n_steps + 1, nearest)
        return self._path(number)

    def _relax(self, length_s: float, n_steps: int, number: int) -> None:
        settled, best = self._settled, self._best
        for edge_s, after, step, price in self.graph.edges(number):
            if not settled[after]:
                reached = (length_s + edge_s, n_steps)
                if reached < best[after]:
                    best[after] = reached
                    self._last[after] = (number, step, price)
                    heapq.heappush(self._heap, (*reached, after))

    def _path(self, number: int) -> Conversion:
        target = self.graph.layouts[number]
        steps: list[Step] = []
        prices: list[StepPrice] = []
        while (last := self._last[number]) is not None:
            number, step, price = last
            steps.append(step)
            prices.append(price)
        return _assemble(self.source, target, tuple(reversed(steps)), prices[::-1])


def _assemble(source: Layout, target: Layout, steps: tuple[Step, ...], prices: list[StepPrice]) -> Conversion:
    """Every step but the first also holds its input; backward, every step but the last one."""
    if not steps:
        return Conversion(source, target)
    transients = [prices[0].forward_bytes, prices[-1].backward_bytes]
    transients += [price.source_bytes + price.forward_bytes for price in prices[1:]]
    transients += [price.target_bytes + price.backward_bytes for price in prices[:-1]]
    return Conversion(
        source,
        target,
        steps,
        tuple(collective for price in prices for collective in price.forward),
        tuple(collective for price in reversed(prices) for collective in price.backward),
        sum(price.forward_s for price in prices),
        sum(price.backward_s for price in prices),
        max(transients),
    )


@lru_cache(maxsize=1 << 12)
def _graph(shape: tuple[int, ...], itemsize: int, mesh: Mesh, grad: bool) -> _Graph:
    return _Graph(shape, itemsize, mesh, grad)


@lru_cache(maxsize=1 << 16)
def _search(source: Layout, shape: tuple[int, ...], itemsize: int, mesh: Mesh, grad: bool) -> _Search:
    source.check(shape, mesh.sizes)
    return _Search(source, _graph(shape, itemsize, mesh, grad))
