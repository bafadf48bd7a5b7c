"""What lies in memory whatever the model computes: parameters, gradients, optimizer state, workspaces, rounding."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import prod
from typing import Literal

from meshwright.capture.program import Parameter
from meshwright.errors import ModelError
from meshwright.profile.saved import DeviceKind

Precision = Literal["fp32", "bf16", "mixed"]
Optimizer = Literal["adamw", "sgd", "momentum"]
Implementation = Literal["foreach", "fused"]

STATES = {"adamw": 2, "momentum": 1, "sgd": 0}
"""Tensors of state per parameter."""

CUDA_BLOCK_BYTES = 512
CUDA_LARGE_BYTES = 10 << 20
CUDA_SEGMENT_BYTES = 2 << 20
CUDA_WHOLE_BYTES = 1 << 20
CUBLAS_WORKSPACE_BYTES = 32 << 20
"""Measured on an H200: one workspace for forward's thread and one for backward's."""


def cpu_round(size: int) -> int:
    return size


def cuda_round(size: int) -> int:
    """Bytes that the caching allocator counts for a request.

    Blocks are whole multiples of 512 bytes; above 10 MiB a block comes from a segment of whole 2 MiB, and is not
    split off where less than 1 MiB would remain.
    """
    rounded = -(-size // CUDA_BLOCK_BYTES) * CUDA_BLOCK_BYTES
    if rounded < CUDA_LARGE_BYTES:
        return rounded
    segment = -(-rounded // CUDA_SEGMENT_BYTES) * CUDA_SEGMENT_BYTES
    return segment if segment - rounded <= CUDA_WHOLE_BYTES else rounded


def rounding(device: DeviceKind) -> Callable[[int], int]:
    return cuda_round if device == "cuda" else cpu_round


@dataclass(frozen=True, slots=True)
class Static:
    """compute_copy_bytes: the half-precision parameters that `mixed` computes with."""

    parameter_bytes: int
    compute_copy_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    optimizer_temporary_bytes: int
    buffer_bytes: int
    workspace_bytes: int

    @property
    def resident_bytes(self) -> int:
        """What is there at any moment; gradients come and go."""
        held = self.parameter_bytes + self.compute_copy_bytes + self.optimizer_bytes
        return held + self.buffer_bytes + self.workspace_bytes


def static(
    parameters: Iterable[Parameter],
    buffers: Iterable[Parameter],
    *,
    optimizer: Optimizer,
    precision: Precision,
    device: DeviceKind,
    implementation: Implementation,
) -> Static:
    given, around = list(parameters), rounding(device)
    if optimizer not in STATES:
        raise ModelError(f"optimizer {optimizer!r}", f"one of {', '.join(STATES)}", "name one of these")
    mixed = precision == "mixed"
    stored = [_bytes(p, 4 if mixed and p.type.is_float else None) for p in given]
    trained = [size for p, size in zip(given, stored, strict=True) if p.trainable]
    steps = len(trained) if optimizer == "adamw" and (implementation == "fused" or device == "cpu") else 0
    return Static(
        parameter_bytes=sum(map(around, stored)),
        compute_copy_bytes=sum(around(_bytes(p)) for p in given) if mixed else 0,
        gradient_bytes=sum(map(around, trained)),
        optimizer_bytes=STATES[optimizer] * sum(map(around, trained)) + steps * around(4),
        optimizer_temporary_bytes=_temporary_bytes(list(map(around, trained)), optimizer, device, implementation),
        buffer_bytes=sum(around(_bytes(b)) for b in buffers),
        workspace_bytes=2 * CUBLAS_WORKSPACE_BYTES if device == "cuda" else 0,
    )


def _temporary_bytes(trained: list[int], optimizer: Optimizer, device: DeviceKind, how: Implementation) -> int:
    """AdamW's root of the second moment: for all parameters at once (foreach), or one after the other, twice (CPU)."""
    if optimizer != "adamw" or how == "fused" or not trained:
        return 0
    return sum(trained) if device == "cuda" else 2 * max(trained)


def _bytes(parameter: Parameter, itemsize: int | None = None) -> int:
    return prod(parameter.type.at(1).sizes) * (itemsize or parameter.type.itemsize)
