"""The structure that segments of one kind share."""

from __future__ import annotations

from dataclasses import dataclass, replace

from meshwright.caches import CACHES
from meshwright.capture.op import Op, Scalar, Value
from meshwright.capture.sizes import BatchSize
from meshwright.errors import VerifyError


@dataclass(frozen=True, slots=True)
class SegmentGraph:
    """The structure that segments of one kind share. All names are local to the graph.

    inputs: what the previous segment hands over. shared_values: parameter-free values (batch tensors, prologue
    results). updates: (buffer, value) pairs; the buffer takes the value after the step's forward.
    scalars: how many numbers differ among its segments; `bind` puts a segment's own in.
    """

    inputs: tuple[Value, ...]
    shared_values: tuple[Value, ...]
    params: tuple[Value, ...]
    buffers: tuple[Value, ...]
    ops: tuple[Op, ...]
    outputs: tuple[str, ...]
    updates: tuple[tuple[str, str], ...] = ()
    scalars: int = 0

    def bind(self, scalars: tuple[float, ...]) -> SegmentGraph:
        """The graph with one segment's numbers in place of its scalars."""
        if not scalars:
            return self
        ops = tuple(op.map(lambda leaf: scalars[leaf.index] if isinstance(leaf, Scalar) else leaf) for op in self.ops)
        return replace(self, ops=ops, scalars=0)

    def arguments(self) -> tuple[Value, ...]:
        return self.inputs + self.shared_values + self.params + self.buffers

    def values(self) -> dict[str, Value]:
        """Every value of the graph by name, arguments first."""
        found = {value.name: value for value in self.arguments()}
        found.update((value.name, value) for op in self.ops for value in op.results)
        return found

    def at(self, batch: int) -> SegmentGraph:
        """The graph with every size fixed at this batch; the same object where it was asked for before."""
        known = _fixed.get((id(self), batch))
        if known is None:
            if len(_fixed) >= MOST_FIXED:
                _fixed.clear()
            known = _fixed[id(self), batch] = (self, self._at(batch))
        return known[1]

    def _at(self, batch: int) -> SegmentGraph:
        def fix_value(value: Value) -> Value:
            return replace(value, type=value.type.at(batch))

        def fix_op(op: Op) -> Op:
            fixed = op.map(lambda leaf: leaf.at(batch) if isinstance(leaf, BatchSize) else leaf)
            return replace(fixed, results=tuple(map(fix_value, op.results)))

        return replace(
            self,
            inputs=tuple(map(fix_value, self.inputs)),
            shared_values=tuple(map(fix_value, self.shared_values)),
            params=tuple(map(fix_value, self.params)),
            buffers=tuple(map(fix_value, self.buffers)),
            ops=tuple(map(fix_op, self.ops)),
        )

    def __str__(self) -> str:
        head = [
            f"  {kind} {value}"
            for kind in ("inputs", "shared_values", "params", "buffers")
            for value in getattr(self, kind)
        ]
        tail = [f"  update {buffer} <- {value}" for buffer, value in self.updates]
        return "\n".join([*head, *(f"  {op}" for op in self.ops), *tail, f"  return {', '.join(self.outputs)}"])

    def verify(self) -> None:
        known: dict[str, Value] = {}
        for value in self.arguments():
            _define(known, value)
        for op in self.ops:
            for name in op.uses():
                if name not in known:
                    raise VerifyError(f"op {op} reads {name!r}", f"a value defined before it: {', '.join(known)}")
            for value in op.results:
                _define(known, value)
        for name in (*self.outputs, *(value for _, value in self.updates)):
            if name not in known:
                raise VerifyError(f"the graph returns {name!r}", "a value it defines")
        buffers = {value.name for value in self.buffers}
        for buffer, _ in self.updates:
            if buffer not in buffers:
                raise VerifyError(f"the graph updates {buffer!r}", f"one of its buffers: {', '.join(buffers)}")


MOST_FIXED = 1024

_fixed: dict[tuple[int, int], tuple[SegmentGraph, SegmentGraph]] = CACHES.own({})
"""By graph and batch; each holds its graph, so that no other takes its place."""


def _define(known: dict[str, Value], value: Value) -> None:
    if value.name in known:
        raise VerifyError(f"{value.name!r} is defined twice", "one definition per value")
    known[value.name] = value
