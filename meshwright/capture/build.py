"""From pieces to the Program: local names, shared SegmentGraphs, the prologue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from meshwright.capture.coupling.find import couplings
from meshwright.capture.cutting.cut import cut, split_common
from meshwright.capture.cutting.fold import floats, merge, structure
from meshwright.capture.cutting.lenders import without_lenders
from meshwright.capture.cutting.localise import Names, localise, module_of, reads
from meshwright.capture.cutting.mixtures import fuse
from meshwright.capture.flat import Flat
from meshwright.capture.program import Coupling, Op, Program, Scalar, Segment, SegmentGraph, Value
from meshwright.capture.reading.random import KEYS
from meshwright.capture.sizes import BatchSize
from meshwright.errors import CaptureError

PROLOGUE = -1


def build(flat: Flat, batch: int, *, max_ops: int = 24, fine: bool = False) -> Program:
    """Fuse, cut, fold and name. The passes: make mixtures of experts one op, set common ops aside, cut, merge to units,
    place shared_values, share graphs. fine: nothing is merged."""
    marks = couplings(flat)
    kept = {flat.loss, *(new for _, new in flat.updates)}
    flat = replace(flat, ops=tuple(fuse(without_lenders(flat.ops), _all_values(flat), kept)))
    chain, common = split_common(flat)
    _check_loss(flat, chain)
    natural = cut(chain, flat.loss, max_ops)
    spans = [(i, i + 1) for i in range(len(natural))] if fine else merge(natural, max_ops)
    bodies = [[op for piece in natural[start:end] for op in piece] for start, end in spans]
    placed = _place(common, bodies)
    for index, body in enumerate(bodies):
        body[:0] = [op for op, place in placed if place == index]
    prologue_ops = [op for op, place in placed if place == PROLOGUE]
    return _assemble(flat, batch, bodies, prologue_ops, marks)


def _check_loss(flat: Flat, chain: Sequence[Op]) -> None:
    loss = next((value for op in reversed(chain) for value in op.results if value.name == flat.loss), None)
    if loss is None:
        raise CaptureError(
            "the loss depends on no parameter of the model",
            "a loss that is computed with its parameters",
            "check what the model, or the loss function, returns",
        )
    if not loss.grad:
        raise CaptureError(
            f"the loss, {loss.type}, passes no gradient to any parameter",
            "a float loss, computed with parameters that require a gradient",
            "check what is frozen, detached or under `no_grad`",
        )


def _place(common: list[Op], bodies: list[list[Op]]) -> list[tuple[Op, int]]:
    """For each common op the segment that alone needs it, or the prologue; unused ones are dropped."""
    readers: dict[str, set[int]] = {}
    for index, body in enumerate(bodies):
        for op in body:
            for name in op.uses():
                readers.setdefault(name, set()).add(index)
    placed: list[tuple[Op, int]] = []
    for op in reversed(common):
        where = set().union(*(readers.get(value.name, set()) for value in op.results))
        if not where:
            continue
        # Keys are handed to segments, so that segments that draw for themselves are still alike.
        place = where.pop() if len(where) == 1 and op.target != KEYS else PROLOGUE
        placed.append((op, place))
        for name in op.uses():
            readers.setdefault(name, set()).add(place)
    return placed[::-1]


def _assemble(
    flat: Flat,
    batch: int,
    bodies: list[list[Op]],
    prologue_ops: list[Op],
    marks: dict[str, str],
) -> Program:
    prologue = _prologue(flat, bodies, prologue_ops)
    last_reader = {name: index for index, body in enumerate(bodies) for op in body for name in op.uses()}
    last_reader[flat.loss] = len(bodies)
    binder = _Binder(flat, {value.name for op in prologue_ops for value in op.results})
    for index, body in enumerate(bodies):
        results = (value.name for op in body for value in op.results)
        binder.add(body, tuple(name for name in results if last_reader.get(name, -1) > index))
    graphs, segments = binder.finish()
    program = Program(
        batch, flat.inputs, flat.parameters, flat.buffers, prologue, prologue.outputs, graphs, segments,
        flat.loss, _coupled(marks, prologue, bodies, graphs, segments), _notes(flat, batch, segments),
    )  # fmt: skip
    program.verify()
    return program


def _prologue(flat: Flat, bodies: list[list[Op]], ops: list[Op]) -> SegmentGraph:
    """Its names are the Program's own, for what it makes is read by many segments."""
    made = {value.name for op in ops for value in op.results}
    used_later = {name for body in bodies for op in body for name in op.uses()}
    read = {name for op in ops for name in op.uses()}
    buffers = tuple(Value(b.name, b.type) for b in flat.buffers if b.name in read)
    inputs = tuple(value for value in flat.inputs if value.name in read)
    return SegmentGraph((), inputs, (), buffers, tuple(ops), tuple(sorted(made & used_later)))


def _coupled(
    marks: dict[str, str],
    prologue: SegmentGraph,
    bodies: list[list[Op]],
    graphs: Sequence[SegmentGraph],
    segments: Sequence[Segment],
) -> tuple[Coupling, ...]:
    found = [Coupling("prologue", op.name, marks[op.name], op.module) for op in prologue.ops if op.name in marks]
    for body, segment in zip(bodies, segments, strict=True):
        pairs = zip(body, graphs[segment.graph].ops, strict=True)
        found += [
            Coupling(segment.name, op.name, marks[own.name], own.module) for own, op in pairs if own.name in marks
        ]
    return tuple(found)


class _Binder:
    """Gives each body a graph under local names, shared with the bodies of the same structure."""

    def __init__(self, flat: Flat, shared_values: set[str]) -> None:
        self.flat, self.types = flat, _all_values(flat)
        self.shared_values = shared_values | {value.name for value in flat.inputs}
        self.parameters = {parameter.name for parameter in flat.parameters}
        self.buffers = {buffer.name for buffer in flat.buffers}
        self.graphs: list[SegmentGraph] = []
        self.floats: list[list[tuple[float, ...]]] = []
        self.known: dict[object, int] = {}
        self.segments: list[Segment] = []
        self.taken: dict[str, int] = {}

    def add(self, body: list[Op], outputs: Names) -> None:
        writes = {value.name for op in body for value in op.results}
        updates = [(buffer, value) for buffer, value in self.flat.updates if value in writes]
        outside = list(dict.fromkeys((*reads(body), *(buffer for buffer, _ in updates))))
        parameters = tuple(name for name in outside if name in self.parameters)
        buffers = tuple(name for name in outside if name in self.buffers)
        shared = tuple(name for name in outside if name in self.shared_values)
        handed = tuple(name for name in outside if name not in {*parameters, *buffers, *shared})
        groups = (handed, shared, parameters, buffers)
        graph = localise(body, groups, outputs, updates, self.types)
        types = tuple((value.type, value.grad) for value in graph.arguments())
        key = (structure(graph.ops), tuple(map(len, groups)), types, graph.outputs, graph.updates)
        if key not in self.known:
            self.known[key] = len(self.graphs)
            self.graphs.append(graph)
            self.floats.append([])
        index = self.known[key]
        self.floats[index].append(floats(graph.ops))
        self.segments.append(Segment(self._name(body), index, *groups, outputs, self.floats[index][-1]))

    def finish(self) -> tuple[tuple[SegmentGraph, ...], tuple[Segment, ...]]:
        """Floats that differ among the segments of a graph become its scalars; the others stay in its ops."""
        differ = [
            [place for place, column in enumerate(zip(*rows, strict=True)) if len(set(column)) > 1]
            for rows in self.floats
        ]
        graphs = tuple(_with_scalars(graph, places) for graph, places in zip(self.graphs, differ, strict=True))
        segments = tuple(
            replace(segment, scalars=tuple(segment.scalars[place] for place in differ[segment.graph]))
            for segment in self.segments
        )
        return graphs, segments

    def _name(self, body: list[Op]) -> str:
        name = module_of(body)
        count = self.taken[name] = self.taken.get(name, -1) + 1
        return f"{name}#{count}" if count else name


def _with_scalars(graph: SegmentGraph, places: list[int]) -> SegmentGraph:
    if not places:
        return graph
    count = -1

    def leaf(arg: Any) -> Any:
        nonlocal count
        count += isinstance(arg, float)
        return Scalar(places.index(count)) if isinstance(arg, float) and count in places else arg

    ops = tuple(op.map(leaf) for op in graph.ops)
    return replace(graph, ops=ops, scalars=len(places))


def _notes(flat: Flat, batch: int, segments: Sequence[Segment]) -> tuple[str, ...]:
    notes = list(flat.notes)
    if not varies(flat, batch):
        notes.append("the batch cannot vary: export fixed it")
    if len(segments) == 1:
        notes.append("the model could not be cut; it is one layer")
    return tuple(notes)


def varies(flat: Flat, batch: int) -> bool:
    """Whether the batch is a size of its own in all inputs; Python code may have made a plain number of it."""
    leading = [size for value in flat.inputs for size in value.type.shape[:1]]
    return any(isinstance(size, BatchSize) for size in leading) and not {batch, max(batch, 2)} & set(leading)


def _all_values(flat: Flat) -> dict[str, Value]:
    found = {value.name: value for value in flat.inputs}
    found |= {p.name: Value(p.name, p.type, p.trainable) for p in flat.parameters}
    found |= {b.name: Value(b.name, b.type) for b in flat.buffers}
    found |= {value.name: value for op in flat.ops for value in op.results}
    return found
