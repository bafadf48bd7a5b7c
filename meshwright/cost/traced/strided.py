"""How elementwise kernels and sums of eager PyTorch walk through memory: dims that have to be told apart, lanes that
read far from each other.

An elementwise kernel whose operands lie like its result reads them as one row. Otherwise it works out, element by
element, where each operand lies, a division for every dim that cannot be joined with its neighbour. And where lanes
side by side read elements that are apart, a whole sector of memory is moved for each.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from meshwright.cluster.device_profile import DeviceProfile

SECTOR = 32
"""Bytes of memory that a GPU reads at least."""

ELEMENT_S, DIM_S = 1.54e-10, 6.1e-11
"""Of one multiprocessor, for each element and for each dim of it: products of Mamba2 on an H200 (132 of them) with 3 to
6 dims, operands in its cache, took 2.56, 3.03, 3.49 and 3.95 picoseconds an element."""


def walked_dims(result: Tensor, operands: Sequence[Tensor]) -> int:
    """Dims that are left when those are joined that follow each other in the memory of all."""
    strides = [_strides(result, result), *(_strides(operand, result) for operand in operands)]
    order = sorted((dim for dim, size in enumerate(result.shape) if size > 1), key=lambda dim: strides[0][dim])
    count, before = 0, -1
    for dim in order:
        joined = before >= 0 and all(own[dim] == own[before] * result.shape[before] for own in strides)
        count += not joined
        before = dim
    return count


def walk_s(profile: DeviceProfile, result: Tensor, operands: Sequence[Tensor]) -> float:
    """Of finding out where elements lie; nothing where two dims or fewer are left: calibration has measured those."""
    dims = walked_dims(result, operands)
    if profile.tables.units <= 1 or dims <= 2:
        return 0.0
    return float(result.numel() * (ELEMENT_S + DIM_S * dims) / profile.tables.units)


def sectors_s(profile: DeviceProfile, result: Tensor, operands: Sequence[Tensor]) -> float:
    """Of reading operands that are repeated, and of which lanes side by side read elements that are apart."""
    strides = _strides(result, result)
    order = sorted((dim for dim, size in enumerate(result.shape) if size > 1), key=lambda dim: strides[dim])
    if profile.tables.units <= 1 or not order:
        return 0.0
    steps = ((_strides(operand, result)[order[0]], operand) for operand in operands if operand.numel() < result.numel())
    moved = sum(_lane_bytes(step, operand) for step, operand in steps if step > 1)
    return float(result.numel() * moved / profile.bandwidth)


def summed_sectors_s(profile: DeviceProfile, main: Tensor, made: Tensor, dims: Sequence[int]) -> float:
    """Of a sum over these dims: lanes go along one that is summed where its stride is smaller than that of the dim
    which comes first in the result's memory, be another one's smaller still."""
    left = [dim for dim in range(main.dim()) if dim not in dims]
    places = range(main.dim()) if made.dim() == main.dim() else range(len(left))
    strides = dict(zip(range(main.dim()) if made.dim() == main.dim() else left, map(made.stride, places), strict=True))
    kept, summed = ([dim for dim in some if main.shape[dim] > 1] for some in (left, dims))
    if profile.tables.units <= 1 or not kept or not summed:
        return 0.0
    first = min(kept, key=lambda dim: strides[dim])
    step = min(main.stride(dim) for dim in (*summed, first))
    return float(main.numel() * _lane_bytes(step, main) / profile.bandwidth) if step > 1 else 0.0


def _lane_bytes(step: int, tensor: Tensor) -> int:
    return min(SECTOR, step * tensor.element_size())


def _strides(operand: Tensor, result: Tensor) -> list[int]:
    """By the result's dims; 0 where the operand is repeated."""
    missing = result.dim() - operand.dim()
    own = zip(operand.shape, operand.stride(), strict=True)
    return [0] * missing + [0 if size == 1 else stride for size, stride in own]
