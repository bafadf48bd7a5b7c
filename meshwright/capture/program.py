"""The Program: a captured training computation as plain, frozen data.

A Program is a *prologue* (parameter-free values that several segments read: rotary tables, masks) followed by
a chain of Segments. Segments of the same structure share one SegmentGraph; the Segment binds the graph's
own names to the Program's parameters, buffers and values. Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from hashlib import sha256
from math import prod

from meshwright.capture.graph import SegmentGraph
from meshwright.capture.op import (
    FLOATS,
    ITEM_BYTES,
    Op,
    Ref,
    RunDevice,
    Scalar,
    TensorType,
    TorchConstant,
    Value,
    map_leaves,
)
from meshwright.capture.sizes import KEEP_SIZES, BatchSize
from meshwright.errors import CaptureError, VerifyError, counted

__all__ = [
    "FLOATS", "ITEM_BYTES", "Coupling", "Op", "Parameter", "Program", "Ref", "RunDevice", "Scalar", "Segment",
    "SegmentGraph", "TensorType", "TorchConstant", "Value", "map_leaves",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Segment:
    """One link of the chain: a graph and what its arguments are bound to, position by position."""

    name: str
    graph: int
    inputs: tuple[str, ...]
    shared_values: tuple[str, ...]
    params: tuple[str, ...]
    buffers: tuple[str, ...]
    outputs: tuple[str, ...]
    scalars: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter or buffer under its first name; `aliases` are the other names of the same tensor."""

    name: str
    type: TensorType
    trainable: bool = True
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Coupling:
    """An op whose result would be another one if the batch were run in parts; `op` by its name in the graph. module:
    whose forward calls it; none for the model's own and the loss."""

    segment: str
    op: str
    why: str
    module: str = ""

    def __str__(self) -> str:
        where = self.module or "the model's own forward or the loss"
        return f"{self.op} in {where} {self.why}"


@dataclass(frozen=True, slots=True)
class Program:
    """A training step's forward, loss included. `loss` is the last segment's only output.

    couples_samples: the ops that keep the batch from being run in parts; empty where the loss is a sum or mean of
    what each sample gives by itself. warnings: where the Program is not all that the model does. answers: lines that
    asked for a tensor's value, with the answers that the user gave. unused_bytes: of the model's parameters that the
    loss does not depend on; a trainer keeps them as they are. form: of a batch that holds more than tensors by name
    (`models.form`).
    """

    batch: int
    inputs: tuple[Value, ...]
    parameters: tuple[Parameter, ...]
    buffers: tuple[Parameter, ...]
    prologue: SegmentGraph
    shared_values: tuple[str, ...]
    graphs: tuple[SegmentGraph, ...]
    segments: tuple[Segment, ...]
    loss: str
    couples_samples: tuple[Coupling, ...] = ()
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()
    unused_bytes: int = 0
    form: str = ""
    _parameters: dict[str, Parameter] = field(default_factory=dict, init=False, compare=False, repr=False)
    _uses: dict[str, tuple[int, ...]] = field(default_factory=dict, init=False, compare=False, repr=False)

    def at_batch(self, batch: int) -> Program:
        """The same Program at another batch; nothing is captured again."""
        if batch != self.batch and not self.batch_varies:
            raise CaptureError(
                f"a batch of {batch} of a Program whose batch export fixed at {self.batch}",
                "a model whose Python code does not turn the batch size into a plain number",
                f"{KEEP_SIZES}; or plan with that batch and one micro-batch",
            )
        return replace(self, batch=batch)

    @property
    def batch_varies(self) -> bool:
        """Whether the batch is a size of its own in all inputs; if not, the Program holds at one batch only."""
        leading = [size for value in self.inputs for size in value.type.shape[:1]]
        return any(isinstance(size, BatchSize) for size in leading) and self.batch not in leading

    def graph(self, segment: Segment) -> SegmentGraph:
        """The segment's graph, its own numbers bound."""
        return self.graphs[segment.graph].bind(segment.scalars)

    def ops(self) -> Iterator[tuple[Segment, Op]]:
        for segment in self.segments:
            for op in self.graph(segment).ops:
                yield segment, op

    def parameter(self, name: str) -> Parameter:
        if not self._parameters:  # asked for by every reader of a plan, for every parameter
            self._parameters.update((parameter.name, parameter) for parameter in self.parameters)
        return self._parameters[name]

    def weight_bytes(self) -> dict[str, int]:
        """Of each parameter, whole, in the dtype it is computed in."""
        return {one.name: prod(one.type.at(1).sizes) * one.type.itemsize for one in self.parameters}

    def uses_of(self, parameter: str) -> tuple[int, ...]:
        """Indices of the segments that read a parameter; more than one for tied weights."""
        if not self._uses:
            found: dict[str, list[int]] = {}
            for index, segment in enumerate(self.segments):
                for name in dict.fromkeys(segment.params):
                    found.setdefault(name, []).append(index)
            self._uses.update((name, tuple(users)) for name, users in found.items())
        return self._uses.get(parameter, ())

    def fingerprint(self) -> str:
        """What two captures of the same model share, at any batch."""
        parts = [
            str(self.parameters),
            str(self.buffers),
            str(self.prologue),
            *map(str, self.graphs),
            str(self.segments),
        ]
        return sha256("\n".join(parts).encode()).hexdigest()[:16]

    def __str__(self) -> str:
        lines = [
            f"Program of {counted(len(self.segments), 'segment')}, {len(self.graphs)} distinct, batch {self.batch}"
        ]
        lines += [f"input {value}" for value in self.inputs]
        if self.prologue.ops:
            lines += ["prologue", str(self.prologue)]
        for index, graph in enumerate(self.graphs):
            names = [segment.name for segment in self.segments if segment.graph == index]
            lines += [f"graph {index}: {', '.join(names)}", str(graph)]
        return "\n".join(lines)

    def verify(self) -> None:
        known = {value.name for value in self.inputs} | set(self.shared_values)
        parameters = {parameter.name for parameter in self.parameters}
        buffers = {buffer.name for buffer in self.buffers}
        self.prologue.verify()
        _subset("prologue", tuple(value.name for value in self.prologue.buffers), buffers)
        for graph in self.graphs:
            graph.verify()
        for segment in self.segments:
            graph = self.graphs[segment.graph]
            if len(segment.scalars) != graph.scalars:
                raise VerifyError(
                    f"segment {segment.name} binds {len(segment.scalars)} scalars", f"{graph.scalars}, as its graph has"
                )
            for kind in ("inputs", "shared_values", "params", "buffers", "outputs"):
                given, wanted = len(getattr(segment, kind)), len(getattr(graph, kind))
                if given != wanted:
                    raise VerifyError(f"segment {segment.name} binds {given} {kind}", f"{wanted}, as its graph has")
            for name in (*segment.inputs, *segment.shared_values):
                if name not in known:
                    raise VerifyError(f"segment {segment.name} reads {name!r}", "a value of an earlier segment")
            _subset(segment.name, segment.params, parameters)
            _subset(segment.name, segment.buffers, buffers)
            known |= set(segment.outputs)
        if self.segments and self.segments[-1].outputs != (self.loss,):
            raise VerifyError(f"the last segment returns {self.segments[-1].outputs}", f"the loss, {self.loss}")


def _subset(segment: str, names: tuple[str, ...], known: set[str]) -> None:
    for name in names:
        if name not in known:
            raise VerifyError(f"segment {segment} reads {name!r}", "a parameter or buffer of the Program")
