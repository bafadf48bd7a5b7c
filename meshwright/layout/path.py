"""The cheapest way from one layout to another: Dijkstra over all layouts of a tensor on a mesh.

Nodes are layouts. An edge is one Step; its length is the seconds of what it runs forward plus, for values with
a gradient, of what its dual runs backward:

    length(u -> v) = forward_s(u, v) + backward_s(u, v)       (grad)        forward_s(u, v)      (no grad)

Lengths depend on the mesh, the tensor's shape and its item size, which make the cache key. The search from one
source is kept and resumed, so asking for every target costs one search. `moves` lists the edges, `graph.Edges`
and `Pricer` price them, `_Search.reach` is the algorithm.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from threading import RLock
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.caches import CACHES
from meshwright.cluster.mesh import Mesh
from meshwright.errors import LayoutError
from meshwright.layout.graph import Edges, is_small
from meshwright.layout.moves import moves
from meshwright.layout.states import Layout, all_layouts
from meshwright.layout.stepprice import Pricer, StepPrice
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


def conversion(
    source: Layout, target: Layout, shape: tuple[int, ...], itemsize: int, mesh: Mesh, grad: bool = True
) -> Conversion:
    """The cheapest conversion of a tensor of global `shape`. Without `grad`, R and I are the same."""
    try:
        return _conversion(source, target, shape, itemsize, mesh, grad)
    except TypeError:  # a list or a dict cannot be a key of the cache
        _check_types(source, target, shape, itemsize, mesh)
        raise


@CACHES.memoized(maxsize=1 << 20)
def _conversion(
    source: Layout, target: Layout, shape: tuple[int, ...], itemsize: int, mesh: Mesh, grad: bool
) -> Conversion:
    return _search(source, shape, itemsize, mesh, grad).reach(target)


def _check_types(source: Layout, target: Layout, shape: tuple[int, ...], itemsize: int, mesh: Mesh) -> None:
    for layout in (source, target):
        if not isinstance(layout, Layout):
            raise LayoutError(f"layout {layout!r}", "a Layout", 'write Layout.parse("[S(0), R]")')
    if not isinstance(mesh, Mesh):
        raise LayoutError(f"mesh {mesh!r}", "a Mesh", 'write cluster.mesh((2, 4)) or logical_mesh({"dp": 2, "tp": 4})')
    if not isinstance(shape, tuple) or any(not isinstance(length, int) or length < 0 for length in shape):
        raise LayoutError(f"shape {shape!r}", "a tuple of whole numbers, 0 or more")
    if not isinstance(itemsize, int) or itemsize < 1:
        raise LayoutError(f"itemsize {itemsize!r}", "bytes of one element, 1 or more")


def step_seconds(shape: tuple[int, ...], itemsize: int, mesh: Mesh, grad: bool) -> NDArray[np.float64]:
    """Seconds of the single step from each layout (rows) to each (columns), by `layout_numbers`; infinite if none."""
    graph = _graph(shape, itemsize, mesh, grad)
    with graph.lock:
        return graph.matrix()


@CACHES.memoized()
def layout_numbers(n_dims: int, n_axes: int) -> dict[Layout, int]:
    """Every layout of a tensor on a mesh, numbered."""
    return {layout: number for number, layout in enumerate(all_layouts(n_dims, n_axes))}


class _Graph:
    """Layouts by number (numbers compare and index faster than layouts) and the edges out of each.

    Where there are not too many, all edges are priced at once; otherwise each when it is met.
    """

    def __init__(self, shape: tuple[int, ...], itemsize: int, mesh: Mesh, grad: bool) -> None:
        self.shape, self.mesh, self.mesh_sizes = shape, mesh, mesh.sizes
        self._pricer = Pricer(shape, itemsize, mesh, grad)
        self.layouts = all_layouts(len(shape), len(mesh.axes))
        self.number = layout_numbers(len(shape), len(mesh.axes))
        self._all = Edges(shape, itemsize, mesh, grad) if is_small(len(shape), len(mesh.axes)) else None
        self._met: dict[int, list[tuple[float, int, Step]]] = {}
        self._prices: dict[int, tuple[Step, StepPrice]] = {}
        self.lock = RLock()

    def edges(self, number: int) -> Iterable[tuple[float, int, Step]]:
        if self._all is not None:
            return self._all.out_of(number)
        if number not in self._met:
            self._met[number] = self._priced(number)
        return self._met[number]

    def matrix(self) -> NDArray[np.float64]:
        if self._all is not None:
            return self._all.matrix()
        lengths = np.full((len(self.layouts), len(self.layouts)), inf)
        np.fill_diagonal(lengths, 0.0)
        for number in range(len(self.layouts)):
            for seconds, target, _ in self.edges(number):
                lengths[number, target] = seconds
        return lengths

    def _priced(self, number: int) -> list[tuple[float, int, Step]]:
        steps = moves(self.layouts[number], len(self.shape))
        return [(self.price(step).total_s, self.number[step.target], step) for step in steps]

    def price(self, step: Step) -> StepPrice:
        """Of a step of this graph; by identity, since there is one object per step."""
        found = self._prices.get(id(step))
        if found is None:
            found = self._prices[id(step)] = (step, self._pricer.price(step))
        return found[1]


class _Search:
    """Dijkstra from one source, resumed where it stopped when a further target is asked for."""

    def __init__(self, source: Layout, graph: _Graph) -> None:
        self.graph = graph
        start, n = graph.number[source], len(graph.layouts)
        self._best_s = [inf] * n
        self._best_steps = [0] * n  # ties in seconds go to fewer steps
        self._best_s[start] = 0.0
        self._last: list[tuple[int, Step] | None] = [None] * n
        self._settled = [False] * n
        self._paths: dict[int, _Path] = {start: _Path(Conversion(source, source))}
        self._heap = [(0.0, 0, start)]

    def reach(self, target: Layout) -> Conversion:
        number = self.graph.number.get(target)
        if number is None:
            _check_types(target, target, self.graph.shape, 1, self.graph.mesh)
            target.check(self.graph.shape, self.graph.mesh_sizes)
            raise AssertionError(f"{target} fits but is not in the graph")
        with self.graph.lock:  # searches and their graph are shared by all threads, through the caches
            while not self._settled[number]:
                length_s, n_steps, nearest = heapq.heappop(self._heap)
                if not self._settled[nearest]:
                    self._settled[nearest] = True
                    self._relax(length_s, n_steps + 1, nearest)
            return self._path(number).conversion

    def _relax(self, length_s: float, n_steps: int, number: int) -> None:
        best_s, best_steps = self._best_s, self._best_steps
        for seconds, after, step in self.graph.edges(number):
            reached_s = length_s + seconds
            # A layout whose path is final is never reached sooner, since no edge is negative.
            if reached_s < best_s[after] or (reached_s == best_s[after] and n_steps < best_steps[after]):
                best_s[after], best_steps[after] = reached_s, n_steps
                self._last[after] = (number, step)
                heapq.heappush(self._heap, (reached_s, n_steps, after))

    def _path(self, number: int) -> _Path:
        """The path to a layout that has a final one; paths share what they have in common."""
        found = self._paths.get(number)
        if found is None:
            last = self._last[number]
            assert last is not None
            found = self._paths[number] = _extended(self._path(last[0]), last[1], self.graph.price(last[1]))
        return found


class _Path(NamedTuple):
    """A conversion with its transient bytes in two parts: all but the last step's backward, and that.

    Backward, the last step starts from the incoming gradient, which is not counted; once another step follows,
    it starts from a gradient that the path itself holds.
    """

    conversion: Conversion
    inner_bytes: int = 0
    last_backward_bytes: int = 0


def _extended(before: _Path, step: Step, price: StepPrice) -> _Path:
    """The path and one more step. Every step but the first also holds its input; backward, all but the last."""
    path, inner_bytes = before.conversion, price.forward_bytes
    if path.steps:
        held_bytes = price.source_bytes + max(price.forward_bytes, before.last_backward_bytes)
        inner_bytes = max(before.inner_bytes, held_bytes)
    longer = Conversion(
        path.source,
        step.target,
        (*path.steps, step),
        path.forward + price.forward,
        price.backward + path.backward,
        path.forward_s + price.forward_s,
        path.backward_s + price.backward_s,
        max(inner_bytes, price.backward_bytes),
    )
    return _Path(longer, inner_bytes, price.backward_bytes)


@CACHES.memoized(maxsize=1 << 12)
def _graph(shape: tuple[int, ...], itemsize: int, mesh: Mesh, grad: bool) -> _Graph:
    return _Graph(shape, itemsize, mesh, grad)


@CACHES.memoized(maxsize=1 << 14)
def _search(source: Layout, shape: tuple[int, ...], itemsize: int, mesh: Mesh, grad: bool) -> _Search:
    _check_types(source, source, shape, itemsize, mesh)
    source.check(shape, mesh.sizes)
    return _Search(source, _graph(shape, itemsize, mesh, grad))
