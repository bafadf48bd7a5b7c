"""One op on local shapes, as its price sees it."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from meshwright.capture.program import ITEM_BYTES, Op
from meshwright.cluster.device_profile import DeviceProfile

Shape = tuple[int, ...]
Seconds = tuple[float, float, float]
"""Forward; and, as if the results had gradients, those of the inputs and those of the weights: a pipeline may run the
latter later. An op that makes both in one kernel (a norm) has them among the inputs'."""

Calls = tuple[float, float]
"""Forward and backward of the host."""


class Tensor(NamedTuple):
    """A local operand or result."""

    shape: Shape
    dtype: str
    grad: bool
    bytes: int


class Case(NamedTuple):
    """One op on local shapes."""

    op: Op
    name: str
    operands: tuple[Tensor, ...]
    results: tuple[Tensor, ...]
    on: DeviceProfile
    unfused: bool = False
    """Of an attention whose mask lies so that no fused kernel takes it."""

    @property
    def dtype(self) -> str:
        return self.results[0].dtype

    @property
    def itemsize(self) -> int:
        return ITEM_BYTES[self.results[0].dtype]

    @property
    def grads(self) -> int:
        return sum(operand.grad for operand in self.operands)

    @property
    def read(self) -> int:
        return sum(operand.bytes for operand in self.operands)

    def kernel(self, name: str, work: float) -> float:
        return self.on.kernel_s(name, self.dtype, work)


def tensor(shape: Shape, dtype: str, grad: bool) -> Tensor:
    return Tensor(shape, dtype, grad, prod(shape) * ITEM_BYTES[dtype])
