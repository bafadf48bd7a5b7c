"""Norms: the dims they normalise over stay whole, except BatchNorm's batch, whose statistics are merged."""

from __future__ import annotations

from dataclasses import replace

from meshwright.layout.states import I
from meshwright.layout.steps import Collective
from meshwright.rules.rule import Call, Lowering, Rule, Split, with_arg
from meshwright.rules.shapes import named
from meshwright.rules.signature import Signature, Term


def last_dims(call: Call) -> Signature:
    """`layer_norm` and `rms_norm` over the last dims; weight and bias, where given, have just these."""
    dims = named(call.rank())
    count = len(call.arg(1, "normalized_shape"))
    tail = dims[len(dims) - count :]
    operands = (Term(dims), *(Term(tail) for _ in call.types[1:]))
    return Signature(operands, (Term(dims),), frozenset(f for dim in tail for f in dim))


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
            target="meshwright.rules.lowerings:batch_norm",
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


_BATCH_NORM = "b c s!, c, c, c, c -> b c s!, c[b=I], c[b=I]"
RULES = {
    "aten.layer_norm": Rule(last_dims, shown="... n!, n!, n! -> ... n!"),
    "aten.rms_norm": Rule(last_dims, shown="... n!, n! -> ... n!"),
    "aten.group_norm": Rule(group_norm, lower_group_norm, shown="b (g c!) s!, (g c!), (g c!) -> b (g c!) s!"),
    "aten.instance_norm": Rule(instance_norm, shown="b c s!, c, c -> b c s!"),
    "aten.batch_norm": Rule(eval_batch_norm, shown="b c s, c, c, c, c -> b c s"),
    "meshwright.capture.functional:batch_norm": Rule(batch_norm, lower_batch_norm, shown=_BATCH_NORM),
}
