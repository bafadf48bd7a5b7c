"""The steps out of a layout: every change of one axis, and flattened collectives over several axes at once."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import combinations, product
from math import prod

from meshwright.layout.states import I, Layout, R, S, State, all_states
from meshwright.layout.steps import Step


def moves(layout: Layout, shape: tuple[int, ...], mesh_sizes: tuple[int, ...]) -> tuple[Step, ...]:
    """Every legal step that starts at `layout`.

    A flattened step needs even pieces on both sides: the padding of nested pieces does not line up.
    """
    steps = _all_moves(layout, len(shape))
    if all(length % prod(mesh_sizes) == 0 for length in shape):
        return steps
    even = layout.is_even(shape, mesh_sizes)
    return tuple(s for s in steps if len(s.axes) == 1 or (even and s.target.is_even(shape, mesh_sizes)))


@lru_cache(maxsize=1 << 16)
def _all_moves(layout: Layout, n_dims: int) -> tuple[Step, ...]:
    flattened = (
        step
        for count in range(2, len(layout) + 1)
        for axes in combinations(range(len(layout)), count)
        for step in _flattened(layout, axes, n_dims)
    )
    return (*_single(layout, n_dims), *flattened)


def _single(layout: Layout, n_dims: int) -> Iterator[Step]:
    for axis, before in enumerate(layout):
        if not _is_innermost(layout, (axis,)):
            continue
        for after in all_states(n_dims):
            target = layout.replace(axis, after)
            if after != before and _is_innermost(target, (axis,)):
                yield Step((axis,), layout, target)


def _flattened(layout: Layout, axes: tuple[int, ...], n_dims: int) -> Iterator[Step]:
    """One collective over several axes."""
    kinds = {layout[axis].kind for axis in axes}
    if len(kinds) > 1 or not _is_innermost(layout, axes):
        return
    for afters in _flat_targets(layout, axes, n_dims):
        states = list(layout.states)
        for axis, after in zip(axes, afters, strict=True):
            states[axis] = after
        target = Layout(tuple(states))
        if _is_innermost(target, axes):
            yield Step(axes, layout, target)


def _flat_targets(layout: Layout, axes: tuple[int, ...], n_dims: int) -> Iterator[tuple[State, ...]]:
    """What the axes may become together: only changes in which one collective does the work of several."""
    kind, n = layout[axes[0]].kind, len(axes)
    shards = product([S(dim) for dim in range(n_dims)], repeat=n)
    if kind == "S":
        yield (R,) * n
        yield (I,) * n
        dims = {layout[axis].dim for axis in axes}
        if len(dims) == 1:
            yield from ((S(dim),) * n for dim in range(n_dims) if dim not in dims)
    elif kind == "P":
        yield (R,) * n
        yield (I,) * n
        yield from shards
    elif kind == "I":
        yield (R,) * n
        yield from shards


def _is_innermost(layout: Layout, axes: tuple[int, ...]) -> bool:
    """Whether, of the axes that shard a dim, the chosen ones come last: only those can be gathered or cut.

    A collective over an outer axis would leave pieces of an inner one in an order no layout describes.
    """
    for axis in axes:
        dim = layout[axis].dim
        if dim is not None and any(other > axis and other not in axes for other in layout.sharding(dim)):
            return False
    return True
