"""What parameters save by travelling in buckets: of a segment's, those whose way is the same plain collective."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

from meshwright.capture.program import Value
from meshwright.cluster import Mesh, collective_s
from meshwright.layout import Collective, Layout
from meshwright.layout.steps import Op

BUCKET_BYTES = 25 << 20
"""What lies side by side is copied there: this is how much more memory a bucket takes, twice."""


def whole_bytes(parameters: Iterable[Value]) -> int:
    """Of a segment's parameters together, before any is cut."""
    return sum(prod(value.type.sizes) * value.type.itemsize for value in parameters)


def moving(ops: Iterable[Op], mesh: Mesh) -> list[Op]:
    """Those that do something on this mesh."""
    return [op for op in ops if op.kind != "none" and any(mesh.sizes[axis] > 1 for axis in op.axes)]


def shared_op(ops: Iterable[Op], shape: Sequence[int], layout: Layout, mesh: Mesh) -> Op | None:
    """The one collective of a way that parameters share; None where it takes several steps, or pieces that are not all
    alike. layout: the sharded end of the way, that of all-reduces its compute layout."""
    found = moving(ops, mesh)
    if len(found) != 1 or found[0].sliced or not layout.is_even(tuple(shape), mesh.sizes):
        return None
    op = found[0]
    if op.kind == "all_reduce":
        return op
    if op.kind not in ("all_gather", "reduce_scatter") or len(op.axes) != 1:
        return None
    dim = layout[op.axes[0]].dim
    return op if dim is not None and layout.sharding(dim) == op.axes else None


def part_of_bucket_s(moved: Collective, company: float, mesh: Mesh) -> float:
    """A parameter's part of the seconds of its bucket, which is `company` times as large as it, or full."""
    bucket = max(moved.bytes, min(BUCKET_BYTES, int(moved.bytes * company)))
    return collective_s(moved.kind, bucket, mesh.axis(moved.axis)) * moved.bytes / bucket
