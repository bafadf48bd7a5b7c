"""What lies in memory whatever the model computes: parameters, gradients, optimizer state, workspaces, rounding."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import prod
from typing import Literal

from meshwright.capture.optimizer import STATES
from meshwright.capture.precision import WIDENED, Precision
from meshwright.capture.program import Parameter
from meshwright.errors import ModelError
from meshwright.profile.saved import DeviceKind

Optimizer = Literal["adamw", "sgd", "momentum"]
Implementation = Literal["foreach", "fused"]

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
    """params: how many numbers. compute_copy_bytes: the half-precision parameters that `mixed` computes with."""

    params: int
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
    around, mixed = rounding(device), precision in WIDENED
    if optimizer not in STATES:
        raise ModelError(f"optimizer {optimizer!r}", f"one of {', '.join(STATES)}", "name one of these")
    given = count_alike(parameters)
    stored = {alike: around(_bytes(alike, 4 if mixed and alike.type.is_float else None)) for alike in given}
    trained = {alike: number for alike, number in given.items() if alike.trainable}
    trained_bytes = sum(stored[alike] * number for alike, number in trained.items())
    steps = sum(trained.values()) if optimizer == "adamw" and (implementation == "fused" or device == "cpu") else 0
    temporary = 0
    if optimizer == "adamw" and implementation != "fused" and trained:
        # The root of the second moment: of all parameters at once, or of one after the other, twice.
        temporary = trained_bytes if device == "cuda" else 2 * max(stored[alike] for alike in trained)
    return Static(
        params=sum(prod(alike.type.at(1).sizes) * number for alike, number in given.items()),
        parameter_bytes=sum(stored[alike] * number for alike, number in given.items()),
        compute_copy_bytes=sum(around(_bytes(alike)) * number for alike, number in given.items()) if mixed else 0,
        gradient_bytes=trained_bytes,
        optimizer_bytes=STATES[optimizer] * trained_bytes + steps * around(4),
        optimizer_temporary_bytes=temporary,
        buffer_bytes=sum(around(_bytes(b)) for b in buffers),
        workspace_bytes=2 * CUBLAS_WORKSPACE_BYTES if device == "cuda" else 0,
    )


def count_alike(parameters: Iterable[Parameter]) -> dict[Parameter, int]:
    """How many parameters of each type there are, under one of them: a deep model has few types."""
    first: dict[object, Parameter] = {}
    found: Counter[object] = Counter()
    # Those of a captured model share the types that are equal, so that few need to be looked at.
    by_type: dict[int, list[Parameter]] = defaultdict(list)
    for parameter in parameters:
        by_type[id(parameter.type)].append(parameter)
    for alike in by_type.values():
        trained = sum(parameter.trainable for parameter in alike)
        for trainable, number in ((True, trained), (False, len(alike) - trained)):
            if number:
                key = (alike[0].type, trainable)
                first.setdefault(key, replace(alike[0], trainable=trainable))
                found[key] += number
    return {first[key]: number for key, number in found.items()}


def _bytes(parameter: Parameter, itemsize: int | None = None) -> int:
    return prod(parameter.type.at(1).sizes) * (itemsize or parameter.type.itemsize)
