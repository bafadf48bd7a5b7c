"""Seconds of one op on one device: a roofline with achievable fractions, and the launch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from meshwright.capture.program import Op, Value
from meshwright.cluster import Device
from meshwright.profile import backward_bytes, backward_flops, forward_flops, is_view, op_bytes, op_kind
from meshwright.rules import Strategy


@dataclass(frozen=True, slots=True)
class OpSeconds:
    forward_s: float
    backward_s: float


def op_seconds(
    op: Op, made: Strategy, values: Mapping[str, Value], mesh_sizes: tuple[int, ...], device: Device
) -> OpSeconds:
    """The lowering's local work, collectives aside. Backward runs only where a result carries a gradient."""
    if is_view(op):
        return OpSeconds(0.0, 0.0)
    local = local_values(op, made, values, mesh_sizes)
    run, kind, dtype = made.lowering, op_kind(op), op.results[0].type.dtype
    forward_s = roofline(device, kind, dtype, forward_flops(run, local), op_bytes(run, local))
    if not any(value.grad for value in op.results):
        return OpSeconds(forward_s, 0.0)
    run = replace(
        run, results=tuple(replace(new, grad=old.grad) for new, old in zip(run.results, op.results, strict=True))
    )
    work, moved_bytes = backward_flops(run, local), backward_bytes(run, local)
    return OpSeconds(forward_s, roofline(device, kind, dtype, work, moved_bytes) if work or moved_bytes else 0.0)


def roofline(device: Device, kind: str, dtype: str, flops: int, moved_bytes: int) -> float:
    arithmetic = 0.0
    if flops:
        arithmetic = flops / (device.peak_flops(_arithmetic(dtype)) * device.achievable_fraction(kind, flops))
    memory = 0.0
    if moved_bytes:
        memory = moved_bytes / (device.memory_bandwidth * device.achievable_fraction("memory", moved_bytes))
    return device.launch_s + max(arithmetic, memory)


def local_values(op: Op, made: Strategy, values: Mapping[str, Value], mesh_sizes: tuple[int, ...]) -> dict[str, Value]:
    """The op's operands under their names, at the sizes one rank holds."""
    found = {}
    for name, layout in zip(op.operands(), made.operands, strict=True):
        value = values[name]
        shape = layout.local_shape(value.type.sizes, mesh_sizes)
        found[name] = Value(name, type(value.type)(shape, value.type.dtype), value.grad)
    return found


def _arithmetic(dtype: str) -> str:
    return dtype if dtype in ("float64", "float32", "bfloat16", "float16") else "float32"
