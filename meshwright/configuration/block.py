"""Ops of one segment on local shapes, with the collectives between them: what `cost.op` prices, built by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

from meshwright.capture.program import ITEM_BYTES, Op, Ref, TensorType, Value

PRODUCTS = frozenset({"linear", "bmm", "_grouped_mm"})
ATTENTION = "scaled_dot_product_attention"


@dataclass(frozen=True, slots=True)
class Moved:
    """A collective over a mesh axis: forward, or backward. `hidden_by`: the op whose weight gradient may hide it.
    behind_attention: the share of attention's seconds that passes before it is waited for."""

    axis: str
    kind: str
    bytes: int
    backward: bool = False
    hidden_by: int = -1
    behind_attention: float = 0.0


@dataclass(slots=True)
class Block:
    """`core`: places of the ops that selective recomputation runs again; `narrow`: linear ops in float8. `kept`: bytes
    of values that are kept otherwise than they are read (a gathered input is kept as its shard). kernel: which one
    attention is, as in `Configuration`. by_row: float8 has a scale for each row; casts: to it are kernels of their
    own. unread: a product's result that no backward reads and that compiled code does not keep."""

    dtype: str
    ops: list[Op] = field(default_factory=list)
    values: dict[str, Value] = field(default_factory=dict)
    weights: dict[str, int] = field(default_factory=dict)
    experts: dict[str, int] = field(default_factory=dict)
    core: set[int] = field(default_factory=set)
    narrow: set[int] = field(default_factory=set)
    kept: dict[str, int] = field(default_factory=dict)
    moved: list[Moved] = field(default_factory=list)
    kernel: str = "flash"
    by_row: bool = False
    casts: bool = True
    unread: str = ""

    def value(self, *shape: int, dtype: str = "", grad: bool = True) -> Value:
        return self._add(f"v{len(self.values)}", shape, dtype or self.dtype, grad)

    def weight(self, *shape: int, expert: bool = False) -> Value:
        found = self._add(f"w{len(self.values)}", shape, self.dtype, True)
        (self.experts if expert else self.weights)[found.name] = prod(shape)
        return found

    def _add(self, name: str, shape: tuple[int, ...], dtype: str, grad: bool) -> Value:
        found = self.values[name] = Value(name, TensorType(shape, dtype), grad)
        return found

    def call(self, target: str, args: tuple[object, ...], *shape: int, dtype: str = "") -> Value:
        """One op with one result; operands are Values, all else literals."""
        result = self.value(*shape, dtype=dtype)
        self.ops.append(Op(target, tuple(Ref(a.name) if isinstance(a, Value) else a for a in args), (), (result,)))
        return result

    def linear(self, x: Value, width: int, bias: bool = False) -> Value:
        *rows, inner = x.type.sizes
        operands = (x, self.weight(width, inner), *([self.weight(width)] if bias else []))
        return self.call("aten.linear.default", operands, *rows, width)

    def norm(self, x: Value, rms: bool) -> Value:
        width = x.type.sizes[-1]
        if rms:
            return self.call("aten.rms_norm.default", (x, (width,), self.weight(width)), *x.type.sizes)
        weights = (self.weight(width), self.weight(width))
        return self.call("aten.layer_norm.default", (x, (width,), *weights), *x.type.sizes)

    def pointwise(self, name: str, *operands: Value) -> Value:
        return self.call(f"aten.{name}", operands, *operands[0].type.sizes)

    def dropout(self, x: Value) -> Value:
        return self.call("aten.dropout.default", (x, 0.1, True), *x.type.sizes)

    def cast(self, x: Value, dtype: str) -> Value:
        return x if x.type.dtype == dtype else self.call("aten.to.dtype", (x,), *x.type.sizes, dtype=dtype)

    def moves(
        self,
        axis: str,
        kind: str,
        n_bytes: float,
        backward: bool = False,
        hidden_by: int = -1,
        behind_attention: float = 0.0,
    ) -> None:
        self.moved.append(Moved(axis, kind, int(n_bytes), backward, hidden_by, behind_attention))

    def bytes_of(self, name: str) -> int:
        type_ = self.values[name].type
        return prod(type_.sizes) * ITEM_BYTES[type_.dtype]
