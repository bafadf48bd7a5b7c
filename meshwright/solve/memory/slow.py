"""Fused ops that take longer than the bytes they move: softmax over long rows, sums over first dims, crowded tables."""

from __future__ import annotations

from math import prod

from torch import Tensor, fx

from meshwright.cluster.device_profile import DeviceProfile
from meshwright.generate.storage import base, is_part
from meshwright.solve.memory.fusible import bytes_of, is_fusible, tensors_of

CONTENDED_S = 3.7e-7
"""Of one addition to a row of a table that others are added to: seen on an H200, 262,144 positions and 32 rows."""

ROUNDED = 5.0
"""An embedding's gradient is filled with zeros, added to and rounded."""


def slowness(node: fx.Node, profile: DeviceProfile, rate: float) -> float:
    """How much longer a fused op takes than its bytes do at this rate, as it is seen alone."""
    name = str(node.target)
    if name == "aten.embedding_dense_backward.default":
        return _table(node, rate)
    if name == "aten.sum.dim_IntList":
        return _sum(node, profile, rate)
    return _softmax(node, profile, rate) if "_softmax" in name else 1.0


def _table(node: fx.Node, rate: float) -> float:
    """Where many rows are added to one of a table, they go one after the other."""
    indices, rows = node.args[1], node.args[2]
    assert isinstance(indices, fx.Node)
    assert isinstance(rows, int)
    contended_s = CONTENDED_S * float(indices.meta["val"].numel()) / max(1, rows)
    read = sum(bytes_of(tensors_of(other.meta.get("val"))) for other in node.all_input_nodes)
    return max(ROUNDED, contended_s * rate / max(1, read))


def _sum(node: fx.Node, profile: DeviceProfile, rate: float) -> float:
    """Over the first dims of what another kernel wrote; a sum over rows goes with what makes them."""
    read, dims = node.args[0], node.args[1]
    assert isinstance(read, fx.Node)
    assert isinstance(dims, list | tuple)
    value, maker = read.meta["val"], base(read)
    maker = maker.all_input_nodes[0] if is_part(maker) else maker
    if is_fusible(maker) or sorted(d % value.dim() for d in dims) != list(range(len(dims))):
        return 1.0
    rows = prod(value.shape[: len(dims)])
    alone_s = profile.rows_s(
        "column_sum", "forward", _dtype(value), value.element_size(), max(1, value.numel() // max(1, rows)), rows
    )
    return max(1.0, float(alone_s * rate / max(1, bytes_of([value]))))


def _softmax(node: fx.Node, profile: DeviceProfile, rate: float) -> float:
    value, backward = node.meta["val"], "backward" in str(node.target)
    dim = node.args[2] if backward else node.args[1]
    width = max(1, value.shape[dim]) if isinstance(dim, int) and value.dim() else 1
    side, moves = ("backward", 3) if backward else ("forward", 2)
    itemsize, units = value.element_size(), max(1, value.numel() // width)
    alone_s = profile.rows_s("softmax", side, _dtype(value), itemsize, units, width)
    return max(1.0, float(alone_s * rate / (moves * itemsize * units * width)))


def _dtype(value: Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")
