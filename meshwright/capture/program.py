"""The Program: a captured training computation as plain, frozen data.

A Program is a *prologue* (parameter-free values that several segments read: rotary tables, masks) followed by
a chain of Segments. Segments of the same structure share one SegmentGraph; the Segment binds the graph's
own names to the Program's parameters, buffers and values. Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

from meshwright.capture.sizes import BatchSize, Size, size_at
from meshwright.errors import CaptureError, VerifyError

ITEM_BYTES = {"float64": 8, "int64": 8, "complex64": 8, "complex128": 16, "float32": 4, "int32": 4}
ITEM_BYTES |= {"bfloat16": 2, "float16": 2, "int16": 2, "uint8": 1, "int8": 1, "bool": 1}
FLOATS = frozenset({"float64", "float32", "bfloat16", "float16"})


@dataclass(frozen=True, slots=True)
class TensorType:
    shape: tuple[Size, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"

    @property
    def itemsize(self) -> int:
        return ITEM_BYTES[self.dtype]

    @property
    def is_float(self) -> bool:
        return self.dtype in FLOATS

    @property
    def has_gradient(self) -> bool:
        """Whether autograd can pass through a value of this dtype."""
        return self.is_float or self.dtype.startswith("complex")

    def at(self, batch: int) -> TensorType:
        return TensorType(tuple(size_at(size, batch) for size in self.shape), self.dtype)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The shape of a type whose batch has been fixed with `at`."""
        for size in self.shape:
            if isinstance(size, BatchSize):
                raise VerifyError(f"{self} still depends on the batch")
        return self.shape  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class Value:
    """A named tensor. `grad`: it is float and derived from a parameter, so backward passes through it."""

    name: str
    type: TensorType
    grad: bool = False

    def __str__(self) -> str:
        return f"{self.name}: {self.type}{' grad' if self.grad else ''}"


@dataclass(frozen=True, slots=True)
class Ref:
    """A use of a value, by name, inside an op's arguments."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class TorchConstant:
    """A dtype, layout or memory format: `torch.<name>`."""

    name: str

    def __str__(self) -> str:
        return f"torch.{self.name}"


@dataclass(frozen=True, slots=True)
class RunDevice:
    """The device the step runs on; captured graphs name no device of their own."""

    def __str__(self) -> str:
        return "device"


@dataclass(frozen=True, slots=True)
class Scalar:
    """The n-th number that differs among the segments of one graph: a drop rate, a scale."""

    index: int

    def __str__(self) -> str:
        return f"scalar_{self.index}"


@dataclass(frozen=True, slots=True)
class Op:
    """One call; its arguments nest tuples of Ref, BatchSize, Scalar, TorchConstant, RunDevice and literals.

    `target` is an operator (`aten.linear.default`) or a Python function (`package.module:function`).
    """

    target: str
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    results: tuple[Value, ...]
    module: str = field(default="", compare=False)

    @property
    def name(self) -> str:
        return self.results[0].name

    def uses(self) -> tuple[str, ...]:
        """Names of the values read, in order of first appearance."""
        return tuple(dict.fromkeys(ref.name for ref in _refs((self.args, self.kwargs))))

    def operands(self) -> tuple[str, ...]:
        """Names of the values read, position by position: a value read twice stands twice."""
        return tuple(ref.name for ref in _refs((self.args, self.kwargs)))

    def map(self, change: Any) -> Op:
        """The op with `change` applied to every leaf of its arguments."""
        return replace(self, args=map_leaves(self.args, change), kwargs=map_leaves(self.kwargs, change))

    def __str__(self) -> str:
        args = [_text(arg) for arg in self.args] + [f"{key}={_text(arg)}" for key, arg in self.kwargs]
        left = ", ".join(map(str, self.results))
        return f"{left} = {self.target}({', '.join(args)})"


@dataclass(frozen=True, slots=True)
class SegmentGraph:
    """The structure that segments of one kind share. All names are local to the graph.

    inputs: what the previous segment hands over. commons: parameter-free values (batch tensors, prologue
    results). updates: (buffer, value) pairs; the buffer takes the value after the step's forward.
    cuts: how many ops precede each natural cut inside, kept for schedules that want finer pieces.
    scalars: how many numbers differ among its segments; `bind` puts a segment's own in.
    """

    inputs: tuple[Value, ...]
    commons: tuple[Value, ...]
    params: tuple[Value, ...]
    buffers: tuple[Value, ...]
    ops: tuple[Op, ...]
    outputs: tuple[str, ...]
    updates: tuple[tuple[str, str], ...] = ()
    cuts: tuple[int, ...] = ()
    scalars: int = 0

    def bind(self, scalars: tuple[float, ...]) -> SegmentGraph:
        """The graph with one segment's numbers in place of its scalars."""
        if not scalars:
            return self
        ops = tuple(op.map(lambda leaf: scalars[leaf.index] if isinstance(leaf, Scalar) else leaf) for op in self.ops)
        return replace(self, ops=ops, scalars=0)

    def arguments(self) -> tuple[Value, ...]:
        return self.inputs + self.commons + self.params + self.buffers

    def values(self) -> dict[str, Value]:
        """Every value of the graph by name, arguments first."""
        found = {value.name: value for value in self.arguments()}
        found.update((value.name, value) for op in self.ops for value in op.results)
        return found

    def at(self, batch: int) -> SegmentGraph:
        """The graph with every size fixed at this batch."""

        def fix_value(value: Value) -> Value:
            return replace(value, type=value.type.at(batch))

        def fix_op(op: Op) -> Op:
            fixed = op.map(lambda leaf: leaf.at(batch) if isinstance(leaf, BatchSize) else leaf)
            return replace(fixed, results=tuple(map(fix_value, op.results)))

        return replace(
            self,
            inputs=tuple(map(fix_value, self.inputs)),
            commons=tuple(map(fix_value, self.commons)),
            params=tuple(map(fix_value, self.params)),
            buffers=tuple(map(fix_value, self.buffers)),
            ops=tuple(map(fix_op, self.ops)),
        )

    def __str__(self) -> str:
        head = [
            f"  {kind} {value}" for kind in ("inputs", "commons", "params", "buffers") for value in getattr(self, kind)
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


@dataclass(frozen=True, slots=True)
class Segment:
    """One link of the chain: a graph and what its arguments are bound to, position by position."""

    name: str
    graph: int
    inputs: tuple[str, ...]
    commons: tuple[str, ...]
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
    """An op whose result would be another one if the batch were run in parts; `op` by its name in the graph."""

    segment: str
    op: str
    why: str

    def __str__(self) -> str:
        return f"{self.op} in {self.segment} {self.why}"


@dataclass(frozen=True, slots=True)
class Program:
    """A training step's forward, loss included. `loss` is the last segment's only output.

    couples_samples: the ops that keep the batch from being run in parts; empty where the loss is a sum or mean of
    what each sample gives by itself. warnings: where the Program is not all that the model does.
    """

    batch: int
    inputs: tuple[Value, ...]
    parameters: tuple[Parameter, ...]
    buffers: tuple[Parameter, ...]
    prologue: SegmentGraph
    commons: tuple[str, ...]
    graphs: tuple[SegmentGraph, ...]
    segments: tuple[Segment, ...]
    loss: str
    couples_samples: tuple[Coupling, ...] = ()
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def at_batch(self, batch: int) -> Program:
        """The same Program at another batch; nothing is captured again."""
        if batch != self.batch and not self.batch_varies:
            raise CaptureError(
                f"a batch of {batch} of a Program whose batch export fixed at {self.batch}",
                "a model whose Python code does not turn the batch size into a plain number",
                "capture it again at that batch, or leave sizes as they are: no `int(...)`, `float(...)`, `len(...)`",
            )
        return replace(self, batch=batch)

    @property
    def batch_varies(self) -> bool:
        """Whether the batch is a size of its own in all inputs; if not, the Program holds at one batch only."""
        leading = [value.type.shape[0] for value in self.inputs]
        return any(isinstance(size, BatchSize) for size in leading) and self.batch not in leading

    def graph(self, segment: Segment) -> SegmentGraph:
        """The segment's graph, its own numbers bound."""
        return self.graphs[segment.graph].bind(segment.scalars)

    def ops(self) -> Iterator[tuple[Segment, Op]]:
        for segment in self.segments:
            for op in self.graph(segment).ops:
                yield segment, op

    def parameter(self, name: str) -> Parameter:
        return next(parameter for parameter in self.parameters if parameter.name == name)

    def uses_of(self, parameter: str) -> tuple[int, ...]:
        """Indices of the segments that read a parameter; more than one for tied weights."""
        return tuple(i for i, segment in enumerate(self.segments) if parameter in segment.params)

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
        lines = [f"Program of {len(self.segments)} segments, {len(self.graphs)} distinct, batch {self.batch}"]
        lines += [f"input {value}" for value in self.inputs]
        if self.prologue.ops:
            lines += ["prologue", str(self.prologue)]
        for index, graph in enumerate(self.graphs):
            names = [segment.name for segment in self.segments if segment.graph == index]
            lines += [f"graph {index}: {', '.join(names)}", str(graph)]
        return "\n".join(lines)

    def verify(self) -> None:
        known = {value.name for value in self.inputs} | set(self.commons)
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
            for kind in ("inputs", "commons", "params", "buffers", "outputs"):
                given, wanted = len(getattr(segment, kind)), len(getattr(graph, kind))
                if given != wanted:
                    raise VerifyError(f"segment {segment.name} binds {given} {kind}", f"{wanted}, as its graph has")
            for name in (*segment.inputs, *segment.commons):
                if name not in known:
                    raise VerifyError(f"segment {segment.name} reads {name!r}", "a value of an earlier segment")
            _subset(segment.name, segment.params, parameters)
            _subset(segment.name, segment.buffers, buffers)
            known |= set(segment.outputs)
        if self.segments and self.segments[-1].outputs != (self.loss,):
            raise VerifyError(f"the last segment returns {self.segments[-1].outputs}", f"the loss, {self.loss}")


def map_leaves(tree: Any, change: Any) -> Any:
    return tuple(map_leaves(item, change) for item in tree) if isinstance(tree, tuple) else change(tree)


def _refs(tree: Any) -> Iterator[Ref]:
    if isinstance(tree, tuple):
        for item in tree:
            yield from _refs(item)
    elif isinstance(tree, Ref):
        yield tree


def _text(arg: Any) -> str:
    if isinstance(arg, tuple):
        return f"[{', '.join(map(_text, arg))}]"
    return str(arg)


def _define(known: dict[str, Value], value: Value) -> None:
    if value.name in known:
        raise VerifyError(f"{value.name!r} is defined twice", "one definition per value")
    known[value.name] = value


def _subset(segment: str, names: tuple[str, ...], known: set[str]) -> None:
    for name in names:
        if name not in known:
            raise VerifyError(f"segment {segment} reads {name!r}", "a parameter or buffer of the Program")
