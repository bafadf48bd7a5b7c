"""The strategies of an op on a mesh under pins."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from meshwright.capture.experts import MIX
from meshwright.capture.program import Op, Value
from meshwright.cluster import Mesh
from meshwright.errors import PlanError
from meshwright.pins.pins import Pins
from meshwright.planner.space.uneven import may_help, worthwhile
from meshwright.profile import op_kind
from meshwright.rules import Narrow, Strategy, Way, strategies


def allowed(
    op: Op,
    values: dict[str, Value],
    mesh: Mesh,
    pins: Pins,
    batch_dims: dict[str, frozenset[int]],
    weights: frozenset[str],
) -> tuple[Strategy, ...]:
    """batch_dims: of every value, the dims that hold samples. weights: the names of those that have several dims."""
    names = (*op.operands(), *(value.name for value in op.results))
    dims = [batch_dims[name] for name in names]
    narrow: Narrow | None = None
    if pins.names_axes:
        narrow = partial(_narrowed, pins, dims, _weight_places(op, weights), op.target == MIX)
    shapes = tuple([values[name].type.sizes for name in op.operands()] + [value.type.sizes for value in op.results])
    uneven = may_help(shapes, mesh.sizes)
    if uneven:
        narrow = _and_worthwhile(narrow, shapes, dims, mesh)
    # None is left where samples go over two axes that do not divide them together.
    found = list(
        strategies(op, values, mesh, uneven=uneven, narrow=narrow) or strategies(op, values, mesh, narrow=_whole(pins))
    )
    if pins.must_split and op_kind(op) in ("matmul", "convolution"):
        axes = pins.tp_axes or range(len(mesh.axes))
        whole = [made for made in found if all(made.factors[i] for i in axes)]
        # A table of positions, say, is not what the pin is about: nobody has to split it where its sizes are small.
        of_the_model = not weights.isdisjoint(op.operands()) or any(value.grad for value in op.results)
        if not whole and pins.split_matmuls and of_the_model:
            raise PlanError(
                f"pin split=matmul, but {op.name} ({op.module or op.target}) cannot be split over {mesh.sizes}",
                "sizes that the mesh divides",
                "drop the pin or change the mesh",
            )
        found = _splitting(whole, op, pins, weights) or whole or found
    if pins.cp_axes and op_kind(op) == "matmul":  # not the same work on every device
        found = [made for made in found if all(made.factors[i] for i in pins.cp_axes)] or found
    return tuple(found)


def _splitting(found: Sequence[Strategy], op: Op, pins: Pins, weights: frozenset[str]) -> list[Strategy]:
    """The strategies that split the op's weights over the axes pinned to tensor parallelism."""
    places = _weight_places(op, weights)
    return [made for made in found if all(made.operands[p][i].is_shard for p in places for i in pins.tp_axes)]


def _without(ways: Sequence[Way], others: Sequence[Way]) -> list[Way]:
    return [way for way in ways if way not in others]


def _weight_places(op: Op, weights: frozenset[str]) -> tuple[int, ...]:
    return tuple(position for position, name in enumerate(op.operands()) if name in weights)


def _narrowed(
    pins: Pins,
    dims: Sequence[frozenset[int]],
    weights: tuple[int, ...],
    experts: bool,
    axis: int,
    ways: Sequence[Way],
) -> Sequence[Way]:
    """The ways of an axis that pins allow.

    dims: of every operand and result, those that hold samples.
    weights: positions of the operands that are weights.
    """
    split = [way for way in ways if any(way.operands[p].is_shard for p in weights)]
    spread = [way for way in split if experts and all(way.operands[p].dim == 0 for p in weights)]
    if axis in pins.ep_axes:
        return spread if experts else _without(ways, split)
    if pins.experts_whole:
        ways = _without(ways, spread)
    if axis in pins.cp_axes:
        ways = _without(ways, split)
    elif pins.tp_axes and axis not in pins.named_axes:  # tensor parallel of that degree, and no more
        ways = _without(ways, _without(split, spread))
    if axis not in (*pins.named_axes, *pins.model_axes):
        return ways
    samples = [way for way in ways if _over_samples(way, dims)]
    if axis in pins.dp_axes:
        return samples or [way for way in ways if way.factor is None]
    return [way for way in ways if way not in samples]


def _and_worthwhile(
    narrow: Narrow | None, shapes: Sequence[tuple[int, ...]], dims: Sequence[frozenset[int]], mesh: Mesh
) -> Narrow:
    """Cuts into pieces of several sizes too, where little is lost by them."""

    def narrowed(axis: int, ways: Sequence[Way]) -> Sequence[Way]:
        left = worthwhile(shapes, dims, mesh.sizes[axis], ways)
        return left if narrow is None else narrow(axis, left)

    return narrowed


def _over_samples(way: Way, dims: Sequence[frozenset[int]]) -> bool:
    return any(state.dim in found for state, found in zip((*way.operands, *way.results), dims, strict=True))


def _whole(pins: Pins) -> Narrow:
    """Splits nothing over the axes of data parallelism."""
    return lambda axis, ways: [way for way in ways if way.factor is None] if axis in pins.dp_axes else ways
