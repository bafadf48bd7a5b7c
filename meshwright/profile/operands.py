"""An op's operands as Values, however the caller holds them; and the few facts about types that counting needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from meshwright.capture.program import Op, TensorType, Value

Values = Mapping[str, Value] | Sequence[Value]
"""Values by name, or one per operand: a value read twice may have two local types."""


def operands_of(op: Op, values: Values) -> tuple[Value, ...]:
    if isinstance(values, Mapping):
        return tuple(values[name] for name in op.operands())
    return tuple(values)


def type_bytes(type_: TensorType) -> int:
    return prod(type_.sizes) * type_.itemsize


def distinct_bytes(op: Op, operands: Sequence[Value]) -> int:
    """Bytes of everything read, a value read twice counted once."""
    return sum({name: type_bytes(value.type) for name, value in zip(op.operands(), operands, strict=True)}.values())


def has_gradient(op: Op) -> bool:
    return any(value.grad for value in op.results)


def packet(target: str) -> str:
    """`aten.add.Tensor` -> `add`, `meshwright.rules.lowerings:mean` -> `mean`: the name counting goes by."""
    if ":" in target:
        return target.rpartition(":")[2]
    return target.removeprefix("aten.").rpartition(".")[0]


def full_name(target: str) -> str:
    """`aten.max.dim` -> `max.dim`; a function's own name."""
    return packet(target) if ":" in target else target.removeprefix("aten.")
