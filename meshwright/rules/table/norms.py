"""Norms. Over sharded dims that they normalise, ranks merge their statistics: a few numbers per row or channel."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from meshwright.capture.program import Op
from meshwright.layout.states import I
from meshwright.layout.steps import Collective
from meshwright.rules.rule import LOWERINGS, Call, Lowering, Rule, Split, with_arg
from meshwright.rules.shapes import named
from meshwright.rules.signature import Signature, Term


def last_dims(call: Call) -> Signature:
    """`layer_norm` and `rms_norm` over the last dims; weight and bias, where given, have just these."""
    dims = named(call.rank())
    tail = dims[len(dims) - len(call.arg(1, "normalized_shape")) :]
    operands = (Term(dims), *(Term(tail) for _ in call.types[1:]))
    return Signature(operands, (Term(dims),))


def weight_norm(call: Call) -> Signature:
    """`g * v / |v|`, the norm over all dims but one: that one is free, and `g` has its size there."""
    kept = call.arg(2, "dim", 0)
    kept = kept % call.rank() if kept >= 0 else None
    dims = named(call.rank())
    given = Term(tuple(dim if i == kept else () for i, dim in enumerate(dims)) if call.rank(1) else ())
    fixed = frozenset(f"d{i}" for i in range(call.rank()) if i != kept)
    return Signature((Term(dims), given), (Term(dims),), fixed)


def rows(call: Call) -> tuple[str, ...]:
    """The dims that are not normalised: over these, rows are whole."""
    return tuple(f"d{i}" for i in range(call.rank() - len(call.arg(1, "normalized_shape"))))


def lower_layer_norm(split: Split) -> Lowering:
    """Over sharded rows: every rank's mean and variance are gathered; backward sums two numbers per row."""
    axis, ways, dims, row_bytes = _shared_rows(split)
    if not axis:
        return Lowering(_local_shape(split, dims))
    weight, bias, eps = split.call.arg(2, "weight"), split.call.arg(3, "bias"), split.call.arg(4, "eps", 1e-5)
    literals = (("dims", dims), ("eps", eps), ("axis", axis), ("size", ways))
    op = replace(split.local, target=_LAYER_NORM, args=(split.local.args[0], weight, bias), kwargs=literals)
    gathered, summed = ("all_gather", axis, 2 * row_bytes * ways), ("all_reduce", axis, 2 * row_bytes)
    return Lowering(op, (Collective(*gathered),), (Collective(*summed),))


def lower_rms_norm(split: Split) -> Lowering:
    """Over sharded rows: one number per row is summed, forward and backward."""
    axis, ways, dims, row_bytes = _shared_rows(split)
    if not axis:
        return Lowering(_local_shape(split, dims))
    literals = (("dims", dims), ("eps", split.call.arg(3, "eps")), ("axis", axis), ("size", ways))
    args = (split.local.args[0], split.call.arg(2, "weight"))
    summed = (Collective("all_reduce", axis, row_bytes),)
    return Lowering(replace(split.local, target=_RMS_NORM, args=args, kwargs=literals), summed, summed)


def _shared_rows(split: Split) -> tuple[str, int, int, int]:
    """The axes that share the rows, how many ranks, the dims of a row, and the bytes of one number per local row."""
    dims, rank = len(split.call.arg(1, "normalized_shape")), split.call.rank()
    factors = tuple(f"d{i}" for i in range(rank - dims, rank))
    local = split.operands[0]
    return split.axis(*factors), split.ways(*factors), dims, prod(local.sizes[:-dims]) * max(4, local.itemsize)


def _local_shape(split: Split, dims: int) -> Op:
    return with_arg(split.local, 1, "normalized_shape", split.results[0].type.shape[-dims:])


def batch_norm(call: Call) -> Signature:
    """Over a sharded batch each rank has its rows of `y`, and all ranks agree on the statistics."""
    dims = (("b",), ("c",), *((f"s{i}",) for i in range(call.rank() - 2)))
    spatial = frozenset(f"s{i}" for i in range(call.rank() - 2))
    channel = tuple(Term((("c",),)) for _ in call.types[1:])
    statistics = Term((("c",),), (("b", I),))
    return Signature((Term(dims), *channel), (Term(dims), statistics, statistics), spatial)


def lower_batch_norm(split: Split) -> Lowering:
    """One all-gather of every rank's mean and variance; backward reduces and scatters their gradients."""
    ways, axis, op = split.ways("b"), split.axis("b"), split.local
    if not axis:
        return Lowering(op)
    statistics = split.results[1].type
    moved = 2 * statistics.sizes[0] * ways * max(statistics.itemsize, split.operands[0].itemsize)
    return Lowering(
        replace(
            op,
            target=f"{LOWERINGS}:batch_norm",
            kwargs=(*op.kwargs, ("axis", axis), ("size", ways)),
        ),
        (Collective("all_gather", axis, moved),),
        (Collective("reduce_scatter", axis, moved),),
    )


def group_norm(call: Call) -> Signature:
    """Channels are (groups, channels of a group); each sample and each group is normalised on its own."""
    rest = tuple((f"s{i}",) for i in range(call.rank() - 2))
    groups = call.arg(1, "num_groups")
    channels = ("g", "c") if groups > 1 else ("c",)
    dims = (("b",), channels, *rest)
    affine = tuple(Term((channels,)) for _ in call.types[1:])
    operands = (Term(dims), *affine)
    whole = frozenset({"c", *(f for dim in rest for f in dim)})
    return Signature(operands, (Term(dims),), whole, given=(("g", groups),))


def eval_batch_norm(call: Call) -> Signature:
    """With fixed statistics each element is scaled by its channel's; in training a Program holds another op."""
    dims = (("b",), ("c",), *((f"s{i}",) for i in range(call.rank() - 2)))
    channel = tuple(Term((("c",),)) for _ in call.types[1:])
    signature = Signature((Term(dims), *channel), (Term(dims),))
    return replace(signature, fixed=frozenset(signature.factors())) if call.arg(5, "training") else signature


def instance_norm(call: Call) -> Signature:
    """Each sample's channels are normalised on their own; running statistics would couple the samples."""
    dims = (("b",), ("c",), *((f"s{i}",) for i in range(call.rank() - 2)))
    channel = tuple(Term((("c",),)) for _ in call.types[1:])
    spatial = {f for dim in dims[2:] for f in dim}
    tracked = {"b"} if call.arg(3, "running_mean") is not None else set()
    return Signature((Term(dims), *channel), (Term(dims),), frozenset(spatial | tracked))


def lower_group_norm(split: Split) -> Lowering:
    groups = split.call.arg(1, "num_groups") // split.ways("g")
    return Lowering(with_arg(split.local, 1, "num_groups", groups))


_LAYER_NORM, _RMS_NORM = f"{LOWERINGS}:shared_layer_norm", f"{LOWERINGS}:shared_rms_norm"
_BATCH_NORM = "b c s!, c, c, c, c -> b c s!, c[b=I], c[b=I]"
RULES = {
    "aten.layer_norm": Rule(last_dims, lower_layer_norm, shown="... n, n, n -> ... n", uneven=rows),
    "aten._weight_norm": Rule(weight_norm, shown="n k!, n -> n k!", filled=True),  # elements over rows
    "aten.rms_norm": Rule(last_dims, lower_rms_norm, shown="... n, n -> ... n", uneven=rows),
    "aten.group_norm": Rule(group_norm, lower_group_norm, shown="b (g c!) s!, (g c!), (g c!) -> b (g c!) s!"),
    "aten.instance_norm": Rule(instance_norm, shown="b c s!, c, c -> b c s!", uneven=False),
    "aten.batch_norm": Rule(eval_batch_norm, shown="b c s, c, c, c, c -> b c s", uneven=False),
    "meshwright.capture.functional:batch_norm": Rule(batch_norm, lower_batch_norm, shown=_BATCH_NORM),
}
