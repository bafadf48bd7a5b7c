"""Writing ops down one by one, each result under a name of its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from meshwright.capture.program import Op, TensorType, Value


@dataclass(slots=True)
class Emitter:
    """ops: so far. values, types: of everything that an op may read, by name."""

    ops: list[Op] = field(default_factory=list)
    values: dict[str, Value] = field(default_factory=dict)
    types: dict[str, TensorType] = field(default_factory=dict)
    taken: dict[str, int] = field(default_factory=dict)

    def define(self, value: Value) -> str:
        self.values[value.name], self.types[value.name] = value, value.type
        return value.name

    def emit(
        self, target: str, args: tuple[Any, ...], type_: TensorType, module: str,
        kwargs: tuple[tuple[str, Any], ...] = (), wanted: str = "",
    ) -> str:  # fmt: skip
        """An op of one result; its name."""
        wanted = wanted or target.split(".")[1]
        return self.add(Op(target, args, kwargs, (), module), [type_], [wanted]).name

    def add(self, op: Op, types: list[TensorType], wanted: list[str]) -> Op:
        """The op with results of these types, under the wanted names or some like them."""
        flows = _passes_gradient(op.target) and any(self.values[name].grad for name in op.uses())
        results = []
        for type_, name in zip(types, wanted, strict=True):
            stem = name
            while name in self.values:
                self.taken[stem] = self.taken.get(stem, 0) + 1
                name = f"{stem}_{self.taken[stem]}"
            value = Value(name, type_, flows and type_.has_gradient)
            results.append(value)
            self.define(value)
        made = Op(op.target, op.args, op.kwargs, tuple(results), op.module)
        self.ops.append(made)
        return made


def _passes_gradient(target: str) -> bool:
    """False for ops that read a tensor for its shape or cut the gradient."""
    name = target.split(".")[1] if target.count(".") > 1 else target
    return not (name.endswith("_like") or name.startswith("new_") or name in ("detach", "histc", "bernoulli"))
