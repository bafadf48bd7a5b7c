"""Grouped matmuls as an operator of our own: rows sorted by expert times that expert's matrix.

torch's own runs in any float dtype, but only bf16 can be looked at without data. Its calls are recorded as this
operator, which does the same work and can be traced, differentiated and generated at any dtype.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from meshwright.capture.tracing.traps import replaced

_real = F.grouped_mm


@torch.library.custom_op("meshwright::grouped_mm", mutates_args=())
def grouped_mm(rows: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    """rows [r, k], weights [groups, k, n], ends [groups]: where each group's rows end. Gives [r, n]."""
    return _real(rows, weights, offs=ends)


@torch.library.custom_op("meshwright::grouped_outer", mutates_args=())
def grouped_outer(rows: Tensor, others: Tensor, ends: Tensor) -> Tensor:
    """rows [r, k], others [r, n]: for each group the sum of its rows' outer products, [groups, k, n]."""
    return _real(rows.t(), others, offs=ends)


@grouped_mm.register_fake
def _(rows: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    return rows.new_empty(rows.shape[0], weights.shape[2])


@grouped_outer.register_fake
def _(rows: Tensor, others: Tensor, ends: Tensor) -> Tensor:
    return rows.new_empty(ends.shape[0], rows.shape[1], others.shape[1])


def _save(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
    rows, weights, ends = ctx.saved_tensors
    gradient = gradient.contiguous()
    return grouped_mm(gradient, weights.transpose(1, 2), ends), grouped_outer(rows, gradient, ends), None


grouped_mm.register_autograd(_backward, setup_context=_save)


@contextmanager
def grouped_matmuls() -> Iterator[None]:
    """While capturing: torch's grouped matmuls are recorded as ours."""

    def record(mat_a: Tensor, mat_b: Tensor, offs: Tensor | None = None, **rest: Any) -> Tensor:
        if mat_a.dim() != 2 or mat_b.dim() != 3 or offs is None or any(value is not None for value in rest.values()):
            return _real(mat_a, mat_b, offs=offs, **rest)
        found: Tensor = grouped_mm(mat_a, mat_b, offs)
        return found

    with replaced(F, "grouped_mm", record), replaced(torch, "_grouped_mm", record):
        yield
