"""Where the values of a graph lie: which of them share a storage, and with which strides.

Strides decide whether a reshape copies, and so what is kept. View ops are asked of torch itself on tensors without
storage; the result of any other op is laid out by the few habits that kernels have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

import torch
from torch import Tensor

from meshwright.capture.program import Op, SegmentGraph, Value
from meshwright.capture.targets import call
from meshwright.profile.attention import Kernel, attention_kernel, unfused_attention
from meshwright.profile.count import ATTENTIONS, VIEWS
from meshwright.profile.kept import Saved
from meshwright.profile.operands import has_gradient, packet, type_bytes
from meshwright.profile.saved import DeviceKind, saved

MAYBE_VIEWS = VIEWS | frozenset({"contiguous", "to", "type_as", "lift_fresh_copy", "unfold", "movedim", "diagonal"})
"""Ops that return their operand's memory where they can."""

_POINTWISE = """
    add sub rsub mul div neg pow exp log sin cos tanh sigmoid relu silu gelu softplus clamp rsqrt sqrt square abs where
    dropout clone to type_as erf reciprocal leaky_relu elu hardswish mish relu6 maximum minimum addcmul
    logical_not bitwise_not eq ne lt le gt ge logical_and logical_or hardsigmoid softmax log_softmax native_dropout
"""
POINTWISE = frozenset(_POINTWISE.split())
"""Ops whose result is laid out as their operands are."""

FOLDED = {"linear": (0,), "matmul": (0, 1)}
"""Operands that are folded to matrices, or batches of them, before they are multiplied."""

META = torch.device("meta")


@dataclass(frozen=True, slots=True)
class Place:
    """The storage a value lies in, named after the value that made it, and how it lies there."""

    storage: str
    strides: tuple[int, ...]
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Places:
    """of: every value's place. storage_bytes: the size of every storage, arguments' included."""

    of: dict[str, Place]
    storage_bytes: dict[str, int]
    device: DeviceKind = "cpu"

    def kernel(self, op: Op, operands: Sequence[Value]) -> Kernel:
        """The kernel of an attention whose operands lie here."""
        steps = [self.of[mask.name].strides[-1] for mask in operands[3:]]
        return attention_kernel(op, operands, self.device, steps[0] if steps else 1)


def places(
    graph: SegmentGraph,
    given: Mapping[str, Place] | None = None,
    given_bytes: Mapping[str, int] | None = None,
    device: DeviceKind = "cpu",
) -> Places:
    """The places of a graph whose batch is fixed. `given`: those of arguments that do not lie alone and in order."""
    found = Places(dict(given or {}), dict(given_bytes or {}), device)
    values = graph.values()
    for value in graph.arguments():
        found.of.setdefault(value.name, Place(value.name, contiguous(value.type.sizes)))
        found.storage_bytes.setdefault(found.of[value.name].storage, type_bytes(value.type))
    for op in graph.ops:
        _place(op, values, found)
    return found


def contiguous(sizes: Sequence[int]) -> tuple[int, ...]:
    return dense(sizes, range(len(sizes)))


def dense(sizes: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """Strides of a tensor without gaps whose dims lie in this order, outermost first."""
    strides, step = [0] * len(sizes), 1
    for dim in reversed(order):
        strides[dim] = step
        step *= max(sizes[dim], 1)
    return tuple(strides)


def is_contiguous(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    plain = contiguous(sizes)
    return 0 in sizes or all(size == 1 or a == b for size, a, b in zip(sizes, strides, plain, strict=True))


def _place(op: Op, values: Mapping[str, Value], found: Places) -> None:
    name = packet(op.target)
    if name == "dropout" and returns_operand(op):
        found.of[op.name] = found.of[op.operands()[0]]
    elif name in MAYBE_VIEWS and op.target.startswith("aten."):
        _place_view(op, values, found)
    else:
        for value in op.results:
            _make(value, _strides(op, value, values, found), found)


def returns_operand(op: Op) -> bool:
    """Whether a dropout does nothing, and returns what it was given."""
    return not op.argument(2, "train", True) or op.argument(1, "p", 0.5) == 0


def _make(value: Value, strides: tuple[int, ...], found: Places) -> None:
    found.of[value.name] = Place(value.name, strides)
    found.storage_bytes[value.name] = type_bytes(value.type)


def _place_view(op: Op, values: Mapping[str, Value], found: Places) -> None:
    tensors = {name: _meta(values[name], found.of[name]) for name in op.uses()}
    results = call(op, tensors, META)
    for value, tensor, base in zip(op.results, results, _bases(op), strict=True):
        if tensor.untyped_storage() is tensors[base].untyped_storage():
            found.of[value.name] = Place(found.of[base].storage, tensor.stride(), int(tensor.storage_offset()))
        else:
            _make(value, tensor.stride(), found)


def _bases(op: Op) -> Sequence[str]:
    """For each result the operand that it may be a view of."""
    operands = op.operands()
    return operands if packet(op.target) == "broadcast_tensors" else [operands[0]] * len(op.results)


def _meta(value: Value, place: Place) -> Tensor:
    """A tensor without storage, laid out as the value is."""
    sizes = value.type.sizes
    dtype = getattr(torch, value.type.dtype)
    reach = place.offset + 1 + sum((size - 1) * step for size, step in zip(sizes, place.strides, strict=True))
    base = torch.empty(max(reach, 0) if prod(sizes) else place.offset, dtype=dtype, device=META)
    return base.as_strided(sizes, place.strides, place.offset)


def _strides(op: Op, value: Value, values: Mapping[str, Value], found: Places) -> tuple[int, ...]:
    sizes = value.type.sizes
    if packet(op.target) in ATTENTIONS and found.kernel(op, [values[name] for name in op.operands()]) != "math":
        return dense(sizes, (0, 2, 1, 3))  # fused kernels write heads innermost, as the projection after them reads
    if packet(op.target) in POINTWISE:
        for name in op.operands():
            if values[name].type.sizes == sizes:
                return _as_operand(sizes, found.of[name].strides)
        if not all(is_contiguous(values[name].type.sizes, found.of[name].strides) for name in op.operands()):
            tensors = {name: _meta(values[name], found.of[name]) for name in op.uses()}
            return call(op, tensors, META)[0].stride()  # operands repeated, the order of their dims decides: ask torch
    return contiguous(sizes)


def _as_operand(sizes: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
    """Dims in the operand's order, without its gaps; repeated dims stay where they are named."""
    if 0 in strides or is_contiguous(sizes, strides):
        return contiguous(sizes)
    order = sorted(range(len(sizes)), key=lambda dim: -strides[dim])
    return dense(sizes, order)


def kept_in_place(op: Op, values: Mapping[str, Value], found: Places) -> Saved:
    """What `saved` says, where an operand that a product has to copy first is kept as that copy."""
    operands = [values[name] for name in op.operands()]
    unfused = packet(op.target) in ATTENTIONS and found.kernel(op, operands) == "math"
    if unfused and has_gradient(op):
        kept = unfused_attention(op, operands, found.device)
    else:
        kept = saved(op, values, found.device)
    folded = set(kept.operands) & set((2,) if unfused else FOLDED.get(packet(op.target), ()))
    rest = 1 if packet(op.target) == "linear" else 2
    copied = [i for i in folded if not _folds(operands[i], found, rest)]
    extra = sum(type_bytes(operands[i].type) for i in copied)
    whole = tuple(i for i in kept.operands if i not in copied)
    return Saved(whole, kept.results, kept.auxiliary_bytes + extra)


def _folds(value: Value, found: Places, rest: int) -> bool:
    """Whether the dims that a product folds into one are one as they lie: all but the last of a linear's operand."""
    sizes, strides = value.type.sizes, found.of[value.name].strides
    return foldable(sizes[:-rest], strides[:-rest])


def foldable(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether dims that lie so are one dim, without copying."""
    kept = [(size, step) for size, step in zip(sizes, strides, strict=True) if size != 1]
    return all(outer == size * step for (_, outer), (size, step) in pairwise(kept))
