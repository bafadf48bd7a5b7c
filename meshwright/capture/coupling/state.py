"""What is known of each value while a program is read for ops that couple samples: see `find`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from meshwright.capture.flat import Flat
from meshwright.capture.program import Op, TensorType
from meshwright.capture.sizes import BatchSize
from meshwright.capture.targets import resolve
from meshwright.torch_compat import argument_names

DIMS = ("dim", "dims", "dimension", "axis")


class Kind(Enum):
    FIXED = auto()
    LINE = auto()
    ROWS = auto()
    ORDER = auto()
    SUM = auto()
    PAIRS = auto()


@dataclass(frozen=True, slots=True)
class State:
    """order: the permutation that ROWS lie in, or that an ORDER is; `~name` undoes `name`."""

    kind: Kind
    order: str = ""


FIXED, LINE, ROWS, SUM, PAIRS = (State(kind) for kind in (Kind.FIXED, Kind.LINE, Kind.ROWS, Kind.SUM, Kind.PAIRS))


class Samples:
    """types, states: of every value so far."""

    def __init__(self, flat: Flat) -> None:
        self.types: dict[str, TensorType] = {value.name: value.type for value in flat.inputs}
        self.types |= {entry.name: entry.type for entry in (*flat.parameters, *flat.buffers)}
        self.states = dict.fromkeys(self.types, FIXED)
        self.states |= {value.name: ROWS for value in flat.inputs if self.batch_dims(value.name)}

    def batch_dims(self, name: str) -> tuple[int, ...]:
        shape = self.types[name].shape
        return tuple(dim for dim, size in enumerate(shape) if isinstance(size, BatchSize))

    def enter(self, op: Op, state: State) -> None:
        self.states |= {value.name: state for value in op.results}

    def enter_by_shape(self, op: Op, reduced: State, order: str = "") -> None:
        for value in op.results:
            dims = len(self.batch_dims(value.name))
            rows = State(Kind.ROWS, order) if dims == 1 else PAIRS
            self.states[value.name] = rows if dims else reduced

    def mark(self, op: Op, why: str) -> str:
        self.enter_by_shape(op, FIXED)
        return why

    def dims(self, op: Op, operand: str, default: int | None = None) -> tuple[int, ...]:
        """The dims that an op's arguments name, counted from the front of this operand."""
        found = argument(op, DIMS)
        found = default if found is None else found
        rank = max(len(self.types[operand].shape), 1)
        listed = found if isinstance(found, tuple) else () if found is None else (found,)
        return tuple(int(dim) % rank for dim in listed)


def packet(target: str) -> str:
    """`aten.add.Tensor` -> `add`; a function's own name."""
    return target.rpartition(":")[2] if ":" in target else target.split(".")[1]


def argument(op: Op, names: Sequence[str]) -> Any:
    """An argument by one of these names, wherever the operator takes it."""
    given = dict(op.kwargs)
    known = () if ":" in op.target else argument_names(resolve(op.target))
    for name in names:
        if name in given:
            return given[name]
        if name in known and known.index(name) < len(op.args):
            return op.args[known.index(name)]
    return None
