"""What attention keeps for backward: on CPU the fused kernel or the plain products; on a GPU one of several kernels.

A fused kernel keeps queries, keys, values, its result and the log of each row's sum. Which kernel runs depends on
dtype, mask, dropout and shape; torch decides, and the conditions here are its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Literal

from meshwright.capture.program import Op, Value
from meshwright.profile.kept import Saved
from meshwright.profile.operands import packet, type_bytes

RANDOM_STATE_BYTES = 16
Kernel = Literal["flash", "padded flash", "cudnn", "efficient", "math"]


def is_causal(op: Op) -> bool:
    """Whether a kernel is told of a causal mask; one given as a tensor it cannot skip."""
    return packet(op.target) == "causal_attention" or bool(op.argument(5, "is_causal", False))


def dropout_rate(op: Op) -> float:
    return 0.0 if packet(op.target) == "causal_attention" else float(op.argument(4, "dropout_p", 0.0))


def attention_kernel(op: Op, operands: Sequence[Value], device: str, mask_step: int = 1) -> Kernel:
    """The kernel that takes this call. `mask_step`: the mask's last stride; on a GPU fused kernels want 1."""
    if device == "cpu":
        return cpu_kernel(op, operands)
    return "math" if mask_step != 1 else cuda_kernel(op, operands)


def cpu_kernel(op: Op, operands: Sequence[Value]) -> Kernel:
    """Four dims, one head width, masks of two or four dims that need no gradient, and no dropout."""
    query, value = operands[0].type.sizes, operands[2].type.sizes
    masks_fit = all(len(mask.type.sizes) in (2, 4) and not mask.grad for mask in operands[3:])
    fits = len(query) == 4 and query[-1] == value[-1] and masks_fit and not dropout_rate(op)
    return "flash" if fits else "math"


def cuda_kernel(op: Op, operands: Sequence[Value]) -> Kernel:
    """Seen on an H200 with torch 2.11. Half precision: cuDNN with or without a mask; flash, on copies of whole 8
    columns, for odd widths; the memory-efficient kernel where the mask needs a gradient. Single precision: the
    memory-efficient kernel. Plain products for grouped heads that no kernel takes.
    """
    query, value, masks = operands[0].type, operands[2].type, operands[3:]
    if len(query.sizes) != 4 or query.dtype == "float64":
        return "math"
    grouped = query.sizes[1] != operands[1].type.sizes[1]
    width = query.sizes[-1]
    if query.itemsize == 2 and width == value.sizes[-1] and width <= 256:
        if width % 8:
            return "padded flash" if not masks else "math" if grouped else "efficient"
        if not any(mask.grad for mask in masks):
            return "cudnn"
    return "math" if grouped else "efficient"


def cpu_attention(op: Op, operands: Sequence[Value]) -> Saved:
    """The fused kernel keeps the log of each row's sum; of a mask of truth values, its own copy in numbers."""
    query, key = operands[0].type, operands[1].type
    if cpu_kernel(op, operands) == "math":
        return unfused_attention(op, operands, "cpu")
    kept = prod(query.sizes[:-1]) * max(4, query.itemsize)
    masks = [value.type for value in operands[3:] if not value.type.is_float]
    kept += sum(prod(mask.sizes) for mask in masks) * query.itemsize
    if packet(op.target) == "causal_attention":
        kept += query.sizes[-2] * key.sizes[-2] * query.itemsize
    return Saved(tuple(range(len(operands) - len(masks))), (0,), kept)


def cuda_attention(op: Op, operands: Sequence[Value]) -> Saved:
    """The log of each row's sum, the random state, and a mask of truth values as numbers.

    The memory-efficient kernel rounds rows up to whole 32, and has its random state on the CPU.
    """
    kernel = cuda_kernel(op, operands)
    if kernel == "math":
        return unfused_attention(op, operands, "cuda")
    query = operands[0].type
    *lead, rows, width = query.sizes
    kept = prod(lead) * (-(-rows // 32) * 32 * 4 if kernel == "efficient" else rows * 4)
    kept += 0 if kernel == "efficient" else RANDOM_STATE_BYTES
    masks = [value.type for value in operands[3:] if not value.type.is_float]
    kept += sum(type_bytes(mask) * query.itemsize for mask in masks)
    if packet(op.target) == "causal_attention":
        kept += rows * operands[1].type.sizes[-2] * query.itemsize
    if kernel == "padded flash":
        wide = -(-width // 8) * 8
        return Saved((), (0,), kept + sum(prod(v.type.sizes[:-1]) for v in operands[:3]) * wide * query.itemsize)
    return Saved(tuple(range(len(operands) - len(masks))), (0,), kept)


def unfused_attention(op: Op, operands: Sequence[Value], device: str) -> Saved:
    """Scaled queries and keys (keys once per query head), the probabilities, what dropout left, and the values.

    Half precision is multiplied in single; grouped keys and values are repeated: then the values are copies too.
    Of dropout a GPU keeps a byte per score, a CPU a number; both keep what is left of the probabilities.
    """
    query, key, value = (operand.type for operand in operands[:3])
    heads, itemsize = prod(query.sizes[:-2]), max(4, query.itemsize)
    scores = prod(query.sizes[:-1]) * key.sizes[-2]
    numbers = prod(query.sizes) + heads * prod(key.sizes[-2:]) + scores
    copied = query.itemsize < 4 or prod(value.sizes[:-2]) != heads
    numbers += heads * prod(value.sizes[-2:]) if copied else 0
    dropped = scores * (itemsize + (1 if device == "cuda" else itemsize)) if dropout_rate(op) else 0
    return Saved(() if copied else (2,), (), numbers * itemsize + dropped)
