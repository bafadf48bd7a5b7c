"""The steps out of a layout: every change of one axis, and flattened collectives over several axes at once.

Several axes change in one collective when one collective of the flattened group does what each axis needs:

    S... -> R or I on each     one all-gather         P... -> R or I on each     one all-reduce
    P... -> S...               one reduce-scatter     I... -> S..., or all R     free; one collective backward
    S... -> S...               one all-to-all, if no dim is sharded both before and after

docs/cluster.md says why the other mixtures are not one collective.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product

from meshwright.caches import CACHES
from meshwright.layout.states import I, Layout, R, S, State, all_states
from meshwright.layout.steps import Step


@CACHES.memoized(maxsize=1 << 16)
def moves(layout: Layout, n_dims: int) -> tuple[Step, ...]:
    """Every legal step that starts at `layout`, for a tensor of so many dims."""
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
                yield Step.of((axis,), layout, target)


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
            yield Step.of(axes, layout, target)


def _flat_targets(layout: Layout, axes: tuple[int, ...], n_dims: int) -> Iterator[tuple[State, ...]]:
    """What the axes may become together: only changes in which one collective does the work of several."""
    kind, n = layout[axes[0]].kind, len(axes)
    if kind in "SP":
        yield from product((R, I), repeat=n)
    elif kind == "I":
        yield (R,) * n
    if kind in "SPI":
        taken = {layout[axis].dim for axis in axes}
        yield from product([S(dim) for dim in range(n_dims) if dim not in taken], repeat=n)


def _is_innermost(layout: Layout, axes: tuple[int, ...]) -> bool:
    """Whether, of the axes that shard a dim, the chosen ones come last: only those can be gathered or cut.

    A collective over an outer axis would leave pieces of an inner one in an order no layout describes.
    """
    for axis in axes:
        dim = layout[axis].dim
        if dim is not None and any(other > axis and other not in axes for other in layout.sharding(dim)):
            return False
    return True
