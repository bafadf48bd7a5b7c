"""The graph of all layouts of a tensor, with every edge's seconds computed at once.

Which steps there are depends only on the number of dims and axes (`_Template`); what an op costs per byte, on the
mesh (`_Terms`); how many bytes it moves, on the tensor. All three are arrays over the edges, so that a new shape
costs a few array operations:

    seconds = min over algorithms of (fixed + per_byte * moved) + copies of what is moved and of what comes out

`Pricer.price` says the same of one step, and a test holds them equal.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from meshwright.caches import CACHES
from meshwright.cluster.cost import collective_lines
from meshwright.cluster.mesh import FLAT, Mesh
from meshwright.layout.moves import moves
from meshwright.layout.states import all_layouts
from meshwright.layout.steps import COMMUNICATING, Op, Step

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class _Direction:
    """Forward or backward of every edge: the layouts before and after the op, and the op by number."""

    before: Ints
    after: Ints
    op: Ints
    staged: Flags  # pieces are put in order on one side of the wire, however even
    flattened: Flags
    exchanges: Ints  # edges whose op is an all-to-all
    cut: Flags  # of those, which dims are cut


class _Template:
    """Layouts and steps of tensors with so many dims on meshes with so many axes. Edges are grouped by source."""

    def __init__(self, n_dims: int, n_axes: int) -> None:
        self.layouts = all_layouts(n_dims, n_axes)
        self.number = {layout: number for number, layout in enumerate(self.layouts)}
        out = [moves(layout, n_dims) for layout in self.layouts]
        self.steps: list[Step] = [step for steps in out for step in steps]
        self.starts = np.cumsum([0, *map(len, out)]).tolist()
        dims = [[-1 if state.dim is None else state.dim for state in layout] for layout in self.layouts]
        self.shards = np.array(dims, np.int64).reshape(len(dims), n_axes, 1) == np.arange(n_dims)
        self.ops: dict[Op, int] = {}
        source = [self.number[step.source] for step in self.steps]
        target = [self.number[step.target] for step in self.steps]
        self.targets = target
        self.forward = self._direction([s.forward_op for s in self.steps], source, target, n_dims)
        self.backward = self._direction([s.backward_op for s in self.steps], target, source, n_dims)

    def _direction(self, ops: list[Op], before: list[int], after: list[int], n_dims: int) -> _Direction:
        numbers = [self.ops.setdefault(op, len(self.ops)) for op in ops]
        edges = list(zip(ops, (self.layouts[i] for i in before), (self.layouts[i] for i in after), strict=True))
        exchanges = [e for e, op in enumerate(ops) if op.kind == "all_to_all"]
        cut = [[any(edges[e][2][i].dim == dim for i in edges[e][0].axes) for dim in range(n_dims)] for e in exchanges]
        return _Direction(
            np.array(before, np.int64),
            np.array(after, np.int64),
            np.array(numbers, np.int64),
            np.array([any(x[i].dim or y[i].dim for i in op.axes) for op, x, y in edges], np.bool_),
            np.array([len(op.axes) > 1 for op in ops], np.bool_),
            np.array(exchanges, np.int64),
            np.array(cut, np.bool_).reshape(len(exchanges), n_dims),
        )


@dataclass(frozen=True, slots=True)
class _Terms:
    """Per op on a mesh: lines of its collective, what counts as moved, and copies."""

    per_byte: Floats  # lines x ops
    fixed_s: Floats
    of_before: Ints  # items moved: this many times those before, and this many times those after
    of_after: Ints
    size: Ints
    copies_result: Flags
    slices: Flags


_LINES = 4


def _terms(template: _Template, mesh: Mesh) -> _Terms:
    n = len(template.ops)
    per_byte, fixed_s = np.zeros((_LINES, n)), np.zeros((_LINES, n))
    of_before, of_after, size = np.zeros(n, np.int64), np.zeros(n, np.int64), np.ones(n, np.int64)
    copies, slices = np.zeros(n, np.bool_), np.zeros(n, np.bool_)
    for op, k in template.ops.items():
        axis = mesh.axis(FLAT.join(mesh.names[i] for i in op.axes))
        sliced = any(mesh.sizes[i] > 1 for i in op.sliced)
        communicates = op.kind in COMMUNICATING and axis.size > 1
        copies[k] = not communicates and op.kind != "none" and (axis.size > 1 or sliced)
        if communicates:
            lines = collective_lines(op.kind, axis)
            per_byte[:, k], fixed_s[:, k] = zip(*(lines[min(j, len(lines) - 1)] for j in range(_LINES)), strict=True)
            size[k], slices[k] = axis.size, sliced
            of_before[k] = {"all_reduce": 1, "all_gather": axis.size}.get(op.kind, 0)
            of_after[k] = axis.size if op.kind == "reduce_scatter" else 0
    return _Terms(per_byte, fixed_s, of_before, of_after, size, copies, slices)


class Edges:
    """Every edge of the graph of one tensor: its seconds, where it leads, its step."""

    def __init__(self, shape: tuple[int, ...], itemsize: int, mesh: Mesh, grad: bool) -> None:
        self._template = _template(len(shape), len(mesh.axes))
        terms = _mesh_terms(mesh, len(shape))
        pieces = _Pieces(self._template, shape, mesh)
        seconds = _seconds(self._template.forward, terms, pieces, itemsize, mesh)
        if grad:
            seconds = seconds + _seconds(self._template.backward, terms, pieces, itemsize, mesh)
        self._seconds = seconds
        self._starts = self._template.starts

    def out_of(self, layout: int) -> Iterable[tuple[float, int, Step]]:
        """Edges that leave a layout, by number: seconds, target, step. Made anew: many tensors are kept."""
        first, last = self._starts[layout], self._starts[layout + 1]
        there, steps = self._template.targets[first:last], self._template.steps[first:last]
        return zip(self._seconds[first:last].tolist(), there, steps, strict=True)

    def matrix(self) -> Floats:
        """Seconds of the step from each layout (rows) to each (columns); infinite where there is none."""
        n = len(self._template.layouts)
        lengths = np.full((n, n), np.inf)
        np.fill_diagonal(lengths, 0.0)
        lengths[self._template.forward.before, self._template.forward.after] = self._seconds  # one step per pair
        return lengths


class _Pieces:
    """Every layout's piece on the first rank: shape, items, and whether all ranks' are alike."""

    def __init__(self, template: _Template, shape: tuple[int, ...], mesh: Mesh) -> None:
        self.shapes: Ints = np.tile(np.array(shape, np.int64), (len(template.layouts), 1))
        factors = np.ones_like(self.shapes)
        for axis, size in enumerate(mesh.sizes):
            here = template.shards[:, axis]
            self.shapes = np.where(here, -(-self.shapes // size), self.shapes)
            factors = np.where(here, factors * size, factors)
        self.items: Ints = self.shapes.prod(1)
        self.even: Flags = (np.array(shape, np.int64) % factors == 0).all(1)


def _seconds(way: _Direction, terms: _Terms, pieces: _Pieces, itemsize: int, mesh: Mesh) -> Floats:
    op, before, after = way.op, pieces.items[way.before], pieces.items[way.after]
    moved = terms.of_before[op] * before + terms.of_after[op] * after
    if len(way.exchanges):
        some, k = way.exchanges, op[way.exchanges]
        lengths = np.where(way.cut, pieces.shapes[way.after[some]], pieces.shapes[way.before[some]])
        moved[some] = np.where(terms.size[k] > 1, terms.size[k] * lengths.prod(1), 0)
    moved_bytes = moved * itemsize
    wire_s = (terms.per_byte[:, op] * moved_bytes + terms.fixed_s[:, op]).min(0)
    staged = way.staged
    if not pieces.even.all():
        staged = staged | (way.flattened & ~(pieces.even[way.before] & pieces.even[way.after]))
    launch_s, copy_s = mesh.device.launch_s, 2 / mesh.device.memory_bandwidth
    copied, slices = terms.copies_result[op], terms.slices[op]
    staging_s = (staged * 1.0 + slices) * moved_bytes * copy_s + slices * launch_s
    seconds: Floats = wire_s + staging_s + copied * (launch_s + after * itemsize * copy_s)
    return seconds


@CACHES.memoized(maxsize=64)
def _template(n_dims: int, n_axes: int) -> _Template:
    return _Template(n_dims, n_axes)


@CACHES.memoized(maxsize=1 << 10)
def _mesh_terms(mesh: Mesh, n_dims: int) -> _Terms:
    return _terms(_template(n_dims, len(mesh.axes)), mesh)


def is_small(n_dims: int, n_axes: int) -> bool:
    """Whether the whole graph is worth having at once; beyond, edges are better priced as a search meets them."""
    return prod([n_dims + 3] * n_axes) <= _MOST_LAYOUTS


_MOST_LAYOUTS = 600
