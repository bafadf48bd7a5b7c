"""Rule: an op's signature and, where the local op is not simply the op itself, how it is lowered.

`Call` is an op together with the types it reads; `Split` is a Call whose factors have been given to mesh axes.
A rule turns the first into a Signature and the second into a Lowering.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Literal

from meshwright.capture.program import Op, Ref, TensorType, Value
from meshwright.cluster.mesh import FLAT, Mesh
from meshwright.layout.steps import Collective
from meshwright.rules.signature import Signature, parse

LOWERINGS = "meshwright.rules.lowerings"
"""The module of the functions that lowerings name; named, not imported, so that rules need no torch."""

Tier = Literal["table", "user", "dtensor", "discovered", "fallback"]
TIERS: tuple[Tier, ...] = ("table", "user", "dtensor", "discovered", "fallback")
"""Where an op's rule may come from, in the order in which it is looked for."""


@dataclass(frozen=True, slots=True)
class Call:
    """An op at a fixed batch, with the types of its operands position by position."""

    op: Op
    types: tuple[TensorType, ...]

    @classmethod
    def of(cls, op: Op, values: Mapping[str, Value]) -> Call:
        return cls(op, tuple(values[name].type for name in op.operands()))

    def arg(self, position: int, name: str, default: Any = None) -> Any:
        return self.op.argument(position, name, default)

    def rank(self, operand: int = 0) -> int:
        return len(self.types[operand].shape)

    def dim(self, position: int, name: str, default: int | None = None) -> int:
        """An argument that is a dim of the first operand, counted from the front."""
        dim: int = self.arg(position, name, default)
        return dim % max(self.rank(), 1)

    @property
    def result_types(self) -> tuple[TensorType, ...]:
        return tuple(value.type for value in self.op.results)


@dataclass(frozen=True, slots=True)
class Split:
    """A Call whose factors have been given to mesh axes: one factor (or none) per axis, and what is then local."""

    call: Call
    factors: tuple[str | None, ...]
    mesh: Mesh
    operands: tuple[TensorType, ...]
    results: tuple[Value, ...]

    def axis(self, *factors: str) -> str:
        """The mesh axes given to these factors, as one: empty for none (or one device), `dp*tp` for several."""
        found = zip(self.mesh.names, self.mesh.sizes, self.factors, strict=True)
        return FLAT.join(name for name, size, factor in found if factor in factors and size > 1)

    def ways(self, *factors: str) -> int:
        """Into how many parts these factors are cut together."""
        pairs = zip(self.mesh.sizes, self.factors, strict=True)
        return prod(size for size, factor in pairs if factor in factors)

    def width(self, size: int, *factors: str) -> int:
        """The length of all pieces but the last of a dim of `size` that is cut by these factors."""
        return -(-size // self.ways(*factors))

    @property
    def local(self) -> Op:
        """The op itself, its results at their local sizes."""
        op = self.call.op
        return Op(op.target, op.args, op.kwargs, self.results, op.module)


@dataclass(frozen=True, slots=True)
class Lowering:
    """The op to run on every rank and the collectives inside it."""

    op: Op
    forward: tuple[Collective, ...] = ()
    backward: tuple[Collective, ...] = ()


def keep(split: Split) -> Lowering:
    """The op itself on local tensors."""
    return Lowering(split.local)


@dataclass(frozen=True, slots=True)
class Rule:
    """`signature` is text, or a function where shapes and arguments decide; `shown` says then what it amounts to.

    `apart`: factors of which only one may be given axes at a time. `uneven`: factors that may be cut into pieces of
    different sizes, all or none of them or a function; by default all where the op itself is what a rank runs.
    `filled`: no piece may be empty, because some torch's kernel divides by a size of its operands.
    """

    signature: str | Callable[[Call], Signature]
    lower: Callable[[Split], Lowering] = keep
    tier: Tier = "table"
    shown: str = ""
    apart: frozenset[str] = frozenset()
    uneven: bool | Callable[[Call], Collection[str]] | None = None
    filled: bool = False

    @property
    def text(self) -> str:
        return self.signature if isinstance(self.signature, str) else self.shown

    @property
    def is_fallback(self) -> bool:
        return self.tier == "fallback"

    def uneven_factors(self, call: Call, signature: Signature) -> frozenset[str]:
        """The factors that may be cut unevenly: where a dim holds others besides one, its pieces would not align."""
        allowed = self.lower is keep if self.uneven is None else self.uneven
        factors = allowed(call) if callable(allowed) else signature.factors() if allowed else ()
        merged = {f for term in signature.terms() for dim in term.dims if len(dim) > 1 for f in dim}
        shown = {f for term in signature.terms() for dim in term.dims for f in dim}
        return frozenset(factors) & shown - merged

    def bind(self, call: Call) -> Signature:
        """The signature of this op at its ranks; optional operands that are not given drop out."""
        if not isinstance(self.signature, str):
            return self.signature(call)
        return parse(self.signature).bind(_present(call.op), call.types)


def _present(op: Op) -> tuple[bool, ...]:
    """Which of the places where a tensor may stand hold one: tensors and `None` in order of appearance."""
    leaves = (*op.args, *(arg for _, arg in op.kwargs))
    return tuple(isinstance(leaf, Ref) for leaf in leaves if leaf is None or isinstance(leaf, Ref))


def with_arg(op: Op, position: int, name: str, value: Any) -> Op:
    """The op with one argument changed, wherever it stands; added by name where it was left out."""
    if position < len(op.args):
        return replace(op, args=(*op.args[:position], value, *op.args[position + 1 :]))
    kwargs = dict(op.kwargs) | {name: value}
    return replace(op, kwargs=tuple(kwargs.items()))
