"""Transient peaks of one segment, by liveness: forward op by op, backward in the opposite order.

Peaks count from what lies in memory anyway: parameters, the batch, and the saved values of the segments before.
Forward, a value dies after its last use unless it is saved. Backward, a gradient dies with the op that consumes it,
and a saved value with the last op that reads it. A parameter's first gradient stays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from meshwright.capture.program import Op, Value
from meshwright.profile.facts import GraphFacts
from meshwright.profile.operands import type_bytes
from meshwright.profile.working import backward_working_bytes, forward_working_bytes, hands_on_gradient

Round = Callable[[int], int]


@dataclass(frozen=True, slots=True)
class Boundary:
    """How a segment's surroundings treat its storages and values; sets of local names.

    kept: inputs that are saved, and so charged to their producer. lives_on: inputs that later segments read.
    released: inputs that no earlier backward reads. has_gradient: inputs and parameters to which a later segment's
    backward gave a gradient already. kept_later: own storages that backward reads in later segments.
    """

    kept: frozenset[str] = frozenset()
    lives_on: frozenset[str] = frozenset()
    released: frozenset[str] = frozenset()
    has_gradient: frozenset[str] = frozenset()
    kept_later: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class SavedValue:
    """A value that stays for backward, or what an op keeps besides (`auxiliary`), under its name in the graph."""

    name: str
    bytes: int
    auxiliary: bool = False


@dataclass(frozen=True, slots=True)
class Liveness:
    """What a segment adds at its worst moment, and the op that runs then; what it leaves behind."""

    forward_peak_bytes: int
    forward_at: str
    backward_peak_bytes: int
    backward_at: str
    saved: tuple[SavedValue, ...]
    saved_bytes: int
    gradient_bytes: int


@dataclass(slots=True)
class _Meter:
    """Bytes in use and the most there were."""

    round: Round
    live_bytes: int = 0
    peak_bytes: int = 0
    at: str = ""

    def add(self, size: int) -> None:
        self.live_bytes += self.round(size)

    def drop(self, size: int) -> None:
        self.live_bytes -= self.round(size)

    def note(self, at: str, working_bytes: int = 0) -> None:
        used = self.live_bytes + self.round(working_bytes)
        if used > self.peak_bytes:
            self.peak_bytes, self.at = used, at


def liveness(facts: GraphFacts, boundary: Boundary, round_: Round) -> Liveness:
    kept = _own_kept(facts, boundary)
    forward = _forward(facts, boundary, kept, round_)
    backward, gradient_bytes = _Backward(facts, boundary, kept, _Meter(round_)).run()
    sizes = facts.places.storage_bytes
    saved = [SavedValue(name, round_(sizes[name])) for name in kept]
    for op, read in zip(facts.graph.ops, facts.reads, strict=True):
        if read.auxiliary_bytes:
            saved.append(SavedValue(op.name, round_(read.auxiliary_bytes), auxiliary=True))
    saved_bytes = sum(value.bytes for value in saved)
    peaks = (forward.peak_bytes, forward.at, backward.peak_bytes, backward.at)
    return Liveness(*peaks, tuple(saved), saved_bytes, gradient_bytes)


def _own_kept(facts: GraphFacts, boundary: Boundary) -> dict[str, None]:
    """Storages made here that some backward reads, in the order they are made."""
    wanted = facts.read | boundary.kept_later
    made = (facts.places.of[value.name].storage for op in facts.graph.ops for value in op.results)
    own = {value.name for op in facts.graph.ops for value in op.results}
    return dict.fromkeys(name for name in made if name in wanted and name in own and name not in facts.outside)


def _forward(facts: GraphFacts, boundary: Boundary, kept: dict[str, None], round_: Round) -> _Meter:
    of, sizes, graph = facts.places.of, facts.places.storage_bytes, facts.graph
    values, last = graph.values(), _last_uses(facts)
    stay = set(kept) | boundary.kept | boundary.lives_on | facts.outside | {v.name for v in graph.shared_values}
    stay |= {of[name].storage for name in graph.outputs}
    meter = _Meter(round_)
    for name in {of[value.name].storage for value in graph.inputs} - boundary.kept:
        meter.add(sizes[name])
    for index, (op, read) in enumerate(zip(graph.ops, facts.reads, strict=True)):
        for value in op.results:
            if of[value.name].storage == value.name and value.name not in facts.outside:
                meter.add(sizes[value.name])
        meter.add(read.auxiliary_bytes)
        meter.note(op.name, forward_working_bytes(op, [values[name] for name in op.operands()], facts.places))
        for name in last.get(index, ()):
            if name not in stay:
                meter.drop(sizes[name])
    return meter


def _last_uses(facts: GraphFacts) -> dict[int, list[str]]:
    """Op index -> storages of inputs and results that nothing reads afterwards."""
    of = facts.places.of
    last = {of[value.name].storage: 0 for value in facts.graph.inputs}
    for index, op in enumerate(facts.graph.ops):
        names = [*op.operands(), *(value.name for value in op.results)]
        last.update((of[name].storage, index) for name in names)
    found: dict[int, list[str]] = {}
    for name, index in last.items():
        found.setdefault(index, []).append(name)
    held = {value.name for value in (*facts.graph.params, *facts.graph.buffers)}
    return {index: [name for name in names if name not in held] for index, names in found.items()}


@dataclass(slots=True)
class _Backward:
    """gradients: value -> the buffer that holds its gradient. uses: buffer -> values whose gradient lies in it."""

    facts: GraphFacts
    boundary: Boundary
    kept: dict[str, None]
    meter: _Meter
    gradients: dict[str, int] = field(default_factory=dict)
    buffers: dict[int, int] = field(default_factory=dict)
    uses: dict[int, int] = field(default_factory=dict)
    gradient_bytes: int = 0

    def run(self) -> tuple[_Meter, int]:
        graph, values = self.facts.graph, self.facts.graph.values()
        params = {value.name for value in graph.params}
        self._enter(values)
        readers = self._readers()
        for op, read in zip(reversed(graph.ops), reversed(self.facts.reads), strict=True):
            if not any(value.name in self.gradients for value in op.results):
                self._release(op, read.auxiliary_bytes, readers)
                continue
            self._differentiate(op, values, params)
            self._release(op, read.auxiliary_bytes, readers)
            for value in op.results:
                self._drop(value.name)
        return self.meter, self.gradient_bytes

    def _enter(self, values: dict[str, Value]) -> None:
        """The saved values that are still needed, and the gradients that later segments made."""
        sizes = self.facts.places.storage_bytes
        read = self.facts.read
        for name in self.kept:
            if name in read:
                self.meter.add(sizes[name])
        for found in self.facts.reads:
            self.meter.add(found.auxiliary_bytes)
        arrived = {*self.facts.graph.outputs, *self.boundary.has_gradient} - {v.name for v in self.facts.graph.params}
        for name in arrived:
            if values[name].grad:
                self._hold(name, type_bytes(values[name].type))
        self.meter.note("entry")

    def _readers(self) -> dict[str, list[str]]:
        """Op -> storages that it reads last in backward, being the first to read them in order."""
        seen: set[str] = set()
        found: dict[str, list[str]] = {}
        for op, read in zip(self.facts.graph.ops, self.facts.reads, strict=True):
            found[op.name] = [name for name in read.storages if name not in seen]
            seen.update(read.storages)
        return found

    def _differentiate(self, op: Op, values: dict[str, Value], params: set[str]) -> None:
        operands = [values[name] for name in op.operands()]
        source = next(self.gradients[value.name] for value in op.results if value.name in self.gradients)
        made: list[tuple[str, int]] = []
        for index, value in enumerate(operands):
            if not value.grad:
                continue
            size = type_bytes(value.type)
            if value.name in params:
                made.append(self._parameter(value.name, size))
            elif value.name in self.gradients:
                if not hands_on_gradient(op, index, operands):
                    self.meter.add(size)
                    made.append((value.name, size))
            elif hands_on_gradient(op, index, operands):
                self.gradients[value.name] = source
                self.uses[source] += 1
            else:
                self._hold(value.name, size)
        self.meter.note(op.name, backward_working_bytes(op, operands, self.facts.places))
        for _, size in made:
            self.meter.drop(size)

    def _parameter(self, name: str, size: int) -> tuple[str, int]:
        """A first gradient stays; a further one is added to it and goes."""
        self.meter.add(size)
        if name in self.gradients or name in self.boundary.has_gradient:
            return name, size
        self.gradients[name] = -1
        self.gradient_bytes += self.meter.round(size)
        return name, 0

    def _hold(self, name: str, size: int) -> None:
        buffer = len(self.buffers)
        self.buffers[buffer], self.uses[buffer], self.gradients[name] = size, 1, buffer
        self.meter.add(size)

    def _drop(self, name: str) -> None:
        buffer = self.gradients.pop(name, None)
        if buffer is None:
            return
        self.uses[buffer] -= 1
        if not self.uses[buffer]:
            self.meter.drop(self.buffers[buffer])

    def _release(self, op: Op, auxiliary_bytes: int, readers: dict[str, list[str]]) -> None:
        """Saved values that no op further back reads."""
        self.meter.drop(auxiliary_bytes)
        for name in readers[op.name]:
            if name in self.kept or name in self.boundary.released:
                self.meter.drop(self.facts.places.storage_bytes[name])
