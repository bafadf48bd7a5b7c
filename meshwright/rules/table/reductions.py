"""Reductions and other ops along dims. Sums come out partial; a mean is a sum that knows the whole count."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod

from meshwright.layout.steps import Collective
from meshwright.rules.rule import LOWERINGS, Call, Lowering, Rule, Split
from meshwright.rules.shapes import along, broadcast_dims, named
from meshwright.rules.signature import Dim, Signature, Term

NONE, MEAN = 0, 1
"""How ATen numbers a loss's `reduction`; 2 is the sum."""


_WHOLE = """
    amax amin max.dim min.dim argmax argmin any.dim all.dim prod.dim_int var.correction std.correction var.dim
    std.dim logsumexp median.dim var_mean.correction std_mean.correction aminmax
"""
_WHOLE_OF_ALL = "max min any all prod var std median"


def listed_dims(call: Call, position: int = 1, name: str = "dim") -> tuple[int, ...]:
    """The dims an op reduces: those given, or all."""
    given = call.arg(position, name)
    if given is None or given == ():
        return tuple(range(call.rank()))
    return tuple(dim % max(call.rank(), 1) for dim in (given if isinstance(given, tuple) else (given,)))


def reduced(call: Call, dims: tuple[int, ...]) -> Signature:
    """`dims` are gone from the results, or of size one there."""
    names = named(call.rank())
    kept: list[Dim] = [() if i in dims else dim for i, dim in enumerate(names)]
    if len(call.result_types[0].shape) != call.rank():
        kept = [dim for i, dim in enumerate(names) if i not in dims]
    return Signature((Term(names),), (Term(tuple(kept)),) * len(call.op.results))


def total(call: Call) -> Signature:
    """Sums and means: linear, and partial where a reduced dim is sharded."""
    return reduced(call, listed_dims(call)).linear()


def total_of_all(call: Call) -> Signature:
    return reduced(call, tuple(range(call.rank()))).linear()


def whole(call: Call) -> Signature:
    """Reductions that are no sums (`amax`, `argmax`, norms): the dims they reduce stay whole."""
    dims = listed_dims(call)
    return replace(reduced(call, dims), fixed=frozenset(f"d{dim}" for dim in dims))


def whole_of_all(call: Call) -> Signature:
    signature = reduced(call, tuple(range(call.rank())))
    return replace(signature, fixed=frozenset(signature.factors()))


def total_of_parts(call: Call) -> Signature:
    """A sum that is linear in no partial sums: it looks at each element."""
    return reduced(call, listed_dims(call))


def paired(call: Call) -> Signature:
    """Two tensors that broadcast, compared along a dim that stays whole."""
    rank = max(map(len, (type_.sizes for type_ in call.types)))
    return _compared(call, rank, call.arg(2, "dim", 1) % rank)


def paired_last(call: Call) -> Signature:
    rank = max(map(len, (type_.sizes for type_ in call.types)))
    return _compared(call, rank, rank - 1)


def _compared(call: Call, rank: int, dim: int) -> Signature:
    padded = [(1,) * (rank - len(t.sizes)) + t.sizes for t in call.types]
    shape = tuple(max(sizes) for sizes in zip(*padded, strict=True))
    operands = tuple(Term(broadcast_dims(type_.sizes, shape)) for type_ in call.types)
    names = named(rank)
    kept: list[Dim] = [() if i == dim else name for i, name in enumerate(names)]
    if len(call.result_types[0].shape) != rank:
        kept = [name for i, name in enumerate(names) if i != dim]
    return Signature(operands, (Term(tuple(kept)),), frozenset({f"d{dim}"}))


def picked(call: Call) -> Signature:
    """One element per row, and where it stands; `kthvalue` is given which before the dim."""
    at = 2 if call.op.target.startswith("aten.kthvalue") else 1
    dims = (call.dim(at, "dim", -1),)
    return replace(reduced(call, dims), fixed=frozenset(f"d{dim}" for dim in dims))


def whole_norm(call: Call) -> Signature:
    dims = listed_dims(call, 2)
    return replace(reduced(call, dims), fixed=frozenset(f"d{dim}" for dim in dims))


def inside(
    position: int, name: str = "dim", default: int | None = None, linear: bool = False
) -> Callable[[Call], Signature]:
    """Same shape in and out, working along one dim: softmax, cumsum, sort."""

    def build(call: Call) -> Signature:
        signature = along(call, (call.dim(position, name, default),))
        return signature.linear() if linear else signature

    return build


def kept_dim(position: int, name: str = "dim", default: int | None = None) -> Callable[[Call], Signature]:
    """`topk`: several results that are shorter along one dim."""

    def build(call: Call) -> Signature:
        dim, names = call.dim(position, name, default), list(named(call.rank()))
        operand = Term(tuple(names))
        names[dim] = ("kept",)
        results = (Term(tuple(names)),) * len(call.op.results)
        return Signature((operand,), results, frozenset({f"d{dim}", "kept"}))

    return build


def normalised(call: Call) -> Signature:
    """Softmax: every dim is free; along its own, ranks merge their largest element and their sum."""
    return along(call, ())


def lower_softmax(log: bool) -> Callable[[Split], Lowering]:
    def lower(split: Split) -> Lowering:
        dim, op, local = split.call.dim(1, "dim"), split.local, split.results[0].type
        axis = split.axis(f"d{dim}")
        if not axis:
            return Lowering(op)
        rows, wide = prod(local.sizes) // local.sizes[dim], max(4, local.itemsize)
        literals = (("dim", dim), ("dtype", split.call.arg(2, "dtype")), ("log", log), ("axis", axis))
        summed = Collective("all_reduce", axis, rows * wide)
        largest = Collective("all_reduce", axis, rows * local.itemsize)
        lowered = replace(op, target=f"{LOWERINGS}:shared_softmax", args=op.args[:1], kwargs=literals)
        return Lowering(lowered, (largest, summed), (summed,))

    return lower


def last_two(call: Call) -> Signature:
    return along(call, (call.rank() - 2, call.rank() - 1)).linear()


def lower_mean(split: Split) -> Lowering:
    """Each rank's mean, over its own elements, divided by how many ranks share the sum."""
    ways, op = split.ways(*_reduced_factors(split.call)), split.local
    if ways == 1:
        return Lowering(op)
    return Lowering(replace(op, target=f"{LOWERINGS}:mean", kwargs=(*op.kwargs, ("parts", ways))))


def kept_dims(call: Call) -> tuple[str, ...]:
    """The dims that a mean leaves: over those it takes, ranks are counted as equal."""
    taken = _reduced_factors(call)
    return tuple(f"d{i}" for i in range(call.rank()) if f"d{i}" not in taken)


def other_dims(call: Call) -> tuple[str, ...]:
    return tuple(f"d{i}" for i in range(call.rank()) if i != call.dim(1, "dim"))


def _reduced_factors(call: Call) -> tuple[str, ...]:
    is_all = call.op.target == "aten.mean.default"
    dims = tuple(range(call.rank())) if is_all else listed_dims(call)
    return tuple(f"d{dim}" for dim in dims)


def histogram(call: Call) -> Signature:
    """Counts add up, given bounds that do not come from the data."""
    dims = named(call.rank())
    from_data = call.arg(2, "min", 0) == call.arg(3, "max", 0)
    fixed = {f for dim in dims for f in dim} if from_data else set()
    return Signature((Term(dims),), (Term((("bins",),)),), frozenset({"bins", *fixed}))


def elementwise_loss(reduction_at: int) -> Rule:
    """A loss over pairs of elements: summed or averaged over all, or not reduced; weights broadcast."""

    def build(call: Call) -> Signature:
        shape = call.types[0].sizes
        operands = tuple(Term(broadcast_dims(type_.sizes, shape)) for type_ in call.types)
        none = call.arg(reduction_at, "reduction", MEAN) == NONE
        return Signature(operands, (Term(named(len(shape)) if none else ()),))

    def lower(split: Split) -> Lowering:
        ways, op = split.ways(*(f"d{i}" for i in range(split.call.rank()))), split.local
        if split.call.arg(reduction_at, "reduction", MEAN) != MEAN or ways == 1:
            return Lowering(op)
        literals = (("loss", op.target), ("parts", ways))
        return Lowering(replace(op, target=f"{LOWERINGS}:mean_loss", kwargs=(*op.kwargs, *literals)))

    return Rule(build, lower, shown="..., ... ->")


_SUM = "... n -> ..., or +"
_INSIDE = "... n! -> ... n!"
_WHOLE_SHOWN = "... n! -> ..."
RULES = {
    "aten.sum.default": Rule(total_of_all, shown=_SUM),
    "aten.sum.dim_IntList": Rule(total, shown=_SUM),
    "aten.mean.default": Rule(total_of_all, lower_mean, shown=_SUM, uneven=kept_dims),
    "aten.mean.dim": Rule(total, lower_mean, shown=_SUM, uneven=kept_dims),
    "aten.linalg_vector_norm": Rule(whole_norm, shown=_WHOLE_SHOWN),
    "aten.norm.ScalarOpt_dim": Rule(whole_norm, shown=_WHOLE_SHOWN),
    "aten.softmax": Rule(normalised, lower_softmax(log=False), shown="... n -> ... n", uneven=other_dims),
    "aten.log_softmax": Rule(normalised, lower_softmax(log=True), shown="... n -> ... n", uneven=other_dims),
    "aten.cumsum": Rule(inside(1, linear=True), shown="... n! -> ... n!, or +"),
    "aten.cummax": Rule(inside(1), shown=_INSIDE),
    "aten.cummin": Rule(inside(1), shown=_INSIDE),
    "aten.cumprod": Rule(inside(1), shown=_INSIDE),
    "aten.logcumsumexp": Rule(inside(1), shown=_INSIDE),
    "aten.sort.default": Rule(inside(1, default=-1), shown=_INSIDE),
    "aten.sort.stable": Rule(inside(9, default=-1), shown=_INSIDE),
    "aten.argsort.default": Rule(inside(1, default=-1), shown=_INSIDE),
    "aten.topk": Rule(kept_dim(2, default=-1), shown="... n! -> ... k!, ... k!"),
    "aten.tril": Rule(last_two, shown="... m! n! -> ... m! n!, or +"),
    "aten.triu": Rule(last_two, shown="... m! n! -> ... m! n!, or +"),
    **{f"aten.{name}": elementwise_loss(2) for name in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")},
    "aten.kl_div": elementwise_loss(2),
    "aten.soft_margin_loss": elementwise_loss(2),
    "aten.hinge_embedding_loss": elementwise_loss(3),
    "aten.margin_ranking_loss": elementwise_loss(4),
    "aten.poisson_nll_loss": elementwise_loss(5),
    "aten.cosine_similarity": Rule(paired, shown="... n!, ... n! -> ..."),
    "aten.pairwise_distance": Rule(paired_last, shown="... n!, ... n! -> ..."),
    "aten.kthvalue": Rule(picked, shown="... n! -> ..., ..."),
    "aten.mode": Rule(picked, shown="... n! -> ..., ..."),
    "aten.nansum": Rule(total_of_parts, shown="... n -> ..."),
    "aten.norm.Scalar": Rule(whole_of_all, shown="x! ->"),
    "aten.binary_cross_entropy": elementwise_loss(3),
    "aten.binary_cross_entropy_with_logits": elementwise_loss(4),
    "aten._is_all_true": Rule(whole_of_all, shown="x! ->"),
    "aten.histc": Rule(histogram, shown="... -> n!", filled=True),
}
RULES |= {f"aten.{name}": Rule(whole, shown=_WHOLE_SHOWN) for name in _WHOLE.split()}
RULES |= {f"aten.{name}.default": Rule(whole_of_all, shown="x! ->") for name in _WHOLE_OF_ALL.split()}
