"""Linear layers in float8, and how much longer kernels take in long steps: by the device's tables."""

from __future__ import annotations

from meshwright.cluster import Device
from meshwright.cluster.profile_load import profile_of
from meshwright.cost.op.case import Seconds

ROW_SCALES_S = 1.8e-12
"""Of each element, the seconds of the kernel that finds rows' scales in the measured tables: 1.76 to 1.86 ps where
their float8 products from 2,048 rows on are split into this, operations and results (H100, H200, B200, GB200)."""
CAST_BYTES = 4
"""Read in half precision, written once for each of two orientations: the forward's and that of a gradient."""


def narrow_linear_s(device: Device, m: int, n: int, k: int, by_row: bool, cast: bool) -> Seconds:
    """[m, k] by [k, n] in float8, as measured with the rows' scales of the left operand found and applied in a kernel
    of their own; training has those of the right one to find too. With one scale for a whole tensor that kernel is
    another: a cast of the input forward and of the result's gradient backward, or none where compiled code casts what
    it makes."""
    on, rate = profile_of(device), device.memory_bandwidth * device.achievable_fraction("memory")
    forward_s, inputs_s, weights_s = (
        max(found_s / 2, found_s + ROW_SCALES_S * inner * (columns if by_row else -rows))
        for rows, columns, inner in ((m, n, k), (m, k, n), (n, k, m))
        for found_s in (on.matmul_s("nt", "float8", 1, rows, columns, inner),)
    )
    each_s = CAST_BYTES * m / rate if cast and not by_row else 0.0
    return forward_s + each_s * k, inputs_s + each_s * n, weights_s


def narrow_relief(device: Device) -> float:
    """How much less products in float8 slow in long steps than those of half precision, where both are known."""
    kept = {entry.kind: entry.fraction for entry in device.achievable}
    return kept.get("sustained", 1.0) / kept["sustained_float8"] if "sustained_float8" in kept else 1.0


def under_load(device: Device, dtype: str, rate: float) -> tuple[float, float]:
    """How much longer products take than alone, and what moves memory, in a step of so many FLOP/s."""
    return profile_of(device).steady(dtype, rate)
