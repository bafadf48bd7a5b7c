"""A captured forward as one flat list of ops, before it is cut."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.capture.program import Op, Parameter, TensorType, Value


@dataclass(frozen=True, slots=True)
class Flat:
    """A captured forward before cutting. Parameters and buffers stand under their first name.

    made: the types of constants that the forward made from Python's numbers while it was captured.
    """

    inputs: tuple[Value, ...]
    parameters: tuple[Parameter, ...]
    buffers: tuple[Parameter, ...]
    ops: tuple[Op, ...]
    updates: tuple[tuple[str, str], ...]
    loss: str
    notes: tuple[str, ...] = ()
    made: tuple[TensorType, ...] = ()
