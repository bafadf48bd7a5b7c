"""Values and ops: what a Program's graphs are made of. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from meshwright.capture.sizes import BatchSize, Size, size_at
from meshwright.errors import VerifyError

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
        if BatchSize in map(type, self.shape):
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
    _operands: tuple[str, ...] | None = field(default=None, init=False, compare=False, repr=False)

    @property
    def name(self) -> str:
        return self.results[0].name

    def uses(self) -> tuple[str, ...]:
        """Names of the values read, in order of first appearance."""
        return tuple(dict.fromkeys(ref.name for ref in _refs((self.args, self.kwargs))))

    def operands(self) -> tuple[str, ...]:
        """Names of the values read, position by position: a value read twice stands twice."""
        if self._operands is None:  # asked for by every reader of a graph
            object.__setattr__(self, "_operands", tuple(ref.name for ref in _refs((self.args, self.kwargs))))
        assert self._operands is not None
        return self._operands

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """An argument given by position or by name."""
        return self.args[position] if position < len(self.args) else dict(self.kwargs).get(name, default)

    def map(self, change: Any) -> Op:
        """The op with `change` applied to every leaf of its arguments."""
        return replace(self, args=map_leaves(self.args, change), kwargs=map_leaves(self.kwargs, change))

    def __str__(self) -> str:
        args = [_text(arg) for arg in self.args] + [f"{key}={_text(arg)}" for key, arg in self.kwargs]
        left = ", ".join(map(str, self.results))
        return f"{left} = {self.target}({', '.join(args)})"


def map_leaves(tree: Any, change: Any) -> Any:
    return tuple(map_leaves(item, change) for item in tree) if isinstance(tree, tuple) else change(tree)


def live(ops: Sequence[Op], needed: Iterable[str]) -> list[Op]:
    """Ops that the needed values follow from."""
    kept, wanted = [], set(needed)
    for op in reversed(ops):
        if any(value.name in wanted for value in op.results):
            kept.append(op)
            wanted.update(op.uses())
    return kept[::-1]


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
