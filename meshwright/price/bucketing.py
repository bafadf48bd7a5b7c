"""Seconds that bucketing saves: shares of a bucket for parameters whose conversions are the same collective."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

from meshwright.caches import CACHES
from meshwright.capture.program import Value
from meshwright.cluster import Axis, Mesh, collective_s
from meshwright.layout import Collective, I, Layout, R
from meshwright.layout.steps import Op

DEPARTURES, LITTLE = 4, 1.05
"""Into how many parts a segment's gradients are cut at most, and how much longer these may take together."""

BUCKET_BYTES = 25 << 20
"""What lies side by side is copied there: this is how much more memory a bucket takes, twice."""


def whole_bytes(parameters: Iterable[Value]) -> int:
    """Bytes of all parameters of a segment, not sharded."""
    return sum(prod(value.type.sizes) * value.type.itemsize for value in parameters)


def moving(ops: Iterable[Op], mesh: Mesh) -> list[Op]:
    """Conversions that do something on this mesh."""
    return [op for op in ops if op.kind != "none" and any(mesh.sizes[axis] > 1 for axis in op.axes)]


def scattered_layout(storage: Layout, compute: Layout) -> Layout:
    """The layout of a reduce-scattered gradient: stored pieces that are partial sums over replicas.

    Replicas are ranks that store the same: those of HSDP, or for norms under sequence parallelism the tp ranks.
    They are summed once a step. Without replicas this is the storage layout.
    """
    pairs = zip(storage.states, compute.states, strict=True)
    found = Layout(tuple(R if stored == I and used == R else stored for stored, used in pairs))
    return storage if found == compute else found


def shared_op(ops: Iterable[Op], shape: Sequence[int], layout: Layout, mesh: Mesh) -> Op | None:
    """The single collective of a conversion that parameters can share; None where it takes several or is uneven.

    layout: the sharded end of the conversion; of an all-reduce its compute layout.
    """
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


def part_of_bucket_s(moved: Collective, company: float, mesh: Mesh, *, leaves: bool = False) -> float:
    """A parameter's share of the seconds of its bucket.

    company: size of the bucket relative to the parameter; a full bucket at most.
    leaves: it is a gradient, whose buckets are smaller where that costs little.
    """
    axis, every = mesh.axis(moved.axis), int(moved.bytes * company)
    parts = grad_buckets(moved.kind, every, axis) if leaves else 1
    bucket = max(1, moved.bytes, min(BUCKET_BYTES, every // parts))  # a parameter may have no elements
    return collective_s(moved.kind, bucket, axis) * moved.bytes / bucket


@CACHES.memoized(maxsize=4096)
def grad_buckets(kind: str, n_bytes: int, axis: Axis) -> int:
    """Number of parts in which so many gradient bytes leave during backward: as many as cost little more than one."""
    whole_s = collective_s(kind, n_bytes, axis)
    return max(n for n in range(1, DEPARTURES + 1) if n * collective_s(kind, n_bytes // n, axis) <= LITTLE * whole_s)


def parts_of(sizes: Sequence[int], parts: int) -> list[int]:
    """For each of these consecutive sizes, the part that has its middle if all are cut into so many equal parts."""
    total, before, found = max(1, sum(sizes)), 0, []
    for size in sizes:
        found.append(min(parts - 1, (2 * before + size) * parts // (2 * total)))
        before += size
    return found
