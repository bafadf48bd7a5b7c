"""Fused ops that take longer than the bytes they move: GELU, softmax over long rows, sums over first dims, crowded
tables. Figures without another source were seen on an H200, in compiled steps of GPT, ViT and T5."""

from __future__ import annotations

from math import prod

from torch import fx

from meshwright.cluster.device_profile import DeviceProfile
from meshwright.cost.traced.call import dtype_of
from meshwright.cost.traced.fusible import bytes_of, is_fusible, tensors_of
from meshwright.cost.traced.storage import base, is_part

CONTENDED_S = 3.7e-7
"""Of one addition to a row of a table that others are added to: 262,144 positions and 32 rows."""

ROUNDED = 5.0
"""An embedding's gradient is filled with zeros, added to and rounded."""

COMPUTED = {"aten.gelu.default": (1.58, 2), "aten.gelu_backward.default": (1.5, 3)}
"""Ops that compute longer than their bytes take: by how much, and of how many tensors of their result's size."""

NORMS = {"aten.native_layer_norm_backward.default": (1.15, 2), "meshwright.gpu_rms_norm_backward.default": (1.0, 1)}
"""Gradients of norms: by how much they take longer than their bytes, and how many parameters have gradients, each of
which is summed in a kernel of its own (`SUMMED_S`)."""

SUMMED_S = 1e-5
SPLIT_S = 4e-6
"""What a sum over many rows takes besides reading them: parts of it are summed apart, and then together."""
SPLIT_ROWS = 1024


def extra_s(node: fx.Node, profile: DeviceProfile, rate: float) -> float:
    """What a fused op takes besides moving its bytes at this rate."""
    name = str(node.target)
    if name == "aten.embedding_dense_backward.default":
        return _table(node, rate)
    if name == "aten.sum.dim_IntList":
        return _sum(node, profile, rate)
    if name in COMPUTED:
        longer, tensors = COMPUTED[name]
        return (longer - 1) * tensors * bytes_of([node.meta["val"]]) / rate
    if name in NORMS:
        longer, params = NORMS[name]
        read = bytes_of(t for other in node.all_input_nodes for t in tensors_of(other.meta.get("val")))
        return (longer - 1) * 1.5 * read / rate + params * SUMMED_S
    return _softmax(node, profile, rate) if "_softmax" in name else 0.0


def _table(node: fx.Node, rate: float) -> float:
    """Where many rows are added to one of a table, they go one after the other."""
    indices, rows = node.args[1], node.args[2]
    assert isinstance(indices, fx.Node)
    assert isinstance(rows, int)
    contended_s = CONTENDED_S * float(indices.meta["val"].numel()) / max(1, rows)
    read = bytes_of(t for other in node.all_input_nodes for t in tensors_of(other.meta.get("val")))
    moved = read + bytes_of(tensors_of(node.meta.get("val")))
    return (max(ROUNDED, contended_s * rate / max(1, read)) - 1) * moved / rate


def _sum(node: fx.Node, profile: DeviceProfile, rate: float) -> float:
    """Over the first dims; a sum over rows goes with what makes them."""
    read, dims = node.args[0], node.args[1]
    assert isinstance(read, fx.Node)
    assert isinstance(dims, list | tuple)
    value, maker = read.meta["val"], base(read)
    maker = maker.all_input_nodes[0] if is_part(maker) else maker
    if sorted(d % value.dim() for d in dims) != list(range(len(dims))):
        return 0.0
    rows, moved = prod(value.shape[: len(dims)]), bytes_of([value])
    if rows > SPLIT_ROWS:
        return SPLIT_S + (moved / rate if is_fusible(maker) else 0.0)  # it cannot be summed while it is made
    if is_fusible(maker):
        return 0.0
    columns = max(1, value.numel() // max(1, rows))
    alone_s = profile.rows_s("column_sum", "forward", dtype_of(value), value.element_size(), columns, rows)
    return max(0.0, float(alone_s) - moved / rate)


def _softmax(node: fx.Node, profile: DeviceProfile, rate: float) -> float:
    value, backward = node.meta["val"], "backward" in str(node.target)
    dim = node.args[2] if backward else node.args[1]
    width = max(1, value.shape[dim]) if isinstance(dim, int) and value.dim() else 1
    side, moves = ("backward", 3) if backward else ("forward", 2)
    itemsize, units = value.element_size(), max(1, value.numel() // width)
    alone_s = profile.rows_s("softmax", side, dtype_of(value), itemsize, units, width)
    return max(0.0, alone_s - float(moves * itemsize * units * width) / rate)
