"""Adding a narrow gradient, times a number, to a sum in single precision: compiled, one kernel that runs in place.

Eager kernels for mixed types and a factor that lies on the device take more than twice as long as their bytes do.
"""

from __future__ import annotations

import torch
from torch import Tensor

from meshwright.caches import CACHES
from meshwright.generate.boxed import Boxed
from meshwright.generate.rehearse import compiled
from meshwright.torch_compat import fake_mode, fake_tensor, trace_joint

LARGE = 1 << 20
"""Sums of fewer numbers are left to eager kernels."""


class Adder:
    """For gradients of one size and dtype on one device."""

    def __init__(self, size: int, dtype: torch.dtype, device: str) -> None:
        self.kernel = _kernel(size, dtype, device)

    def __call__(self, total: Tensor, gradient: Tensor, scale: Tensor) -> None:
        """total += gradient * scale; `total` and `gradient` have the same strides."""
        if not gradient.is_contiguous():  # a product may hand out its result turned
            total, gradient = total.mT, gradient.mT
        if gradient.is_contiguous():
            self.kernel([total.view(-1), gradient.view(-1), scale])
        else:
            total.addcmul_(gradient, scale)


@CACHES.memoized(maxsize=64)
def _kernel(size: int, dtype: torch.dtype, device: str) -> Boxed:
    mode = fake_mode()
    arguments = [((size,), torch.float32), ((size,), dtype), ((), torch.float32)]
    fakes = [fake_tensor(shape, kind, mode, device) for shape, kind in arguments]

    def add(total: Tensor, gradient: Tensor, scale: Tensor) -> list[Tensor]:
        return [total.copy_(total + gradient.to(total.dtype) * scale)]

    return compiled(trace_joint(add, fakes, mode))
