"""Gathering and scattering by index: dims that are indexed stay whole, the others and the index's own are free."""

from __future__ import annotations

from typing import Any

from meshwright.capture.program import Ref
from meshwright.rules.rule import Call, Rule
from meshwright.rules.shapes import broadcast_dims, changed, named
from meshwright.rules.signature import Dim, Signature, Term
from meshwright.rules.table.factories import invariant


def gather(call: Call) -> Signature:
    """Each element of the index picks along `dim`; on that dim the index may be sharded, the source not."""
    source, index = (type_.sizes for type_ in call.types)
    dim, dims = call.dim(1, "dim"), named(call.rank())
    shared = [i != dim and source[i] == index[i] for i in range(call.rank())]
    operand = tuple(d if same else (f"x{i}",) for i, (d, same) in enumerate(zip(dims, shared, strict=True)))
    picked = tuple(d if same or i == dim else (f"y{i}",) for i, (d, same) in enumerate(zip(dims, shared, strict=True)))
    fixed = frozenset(f"{letter}{i}" for i in range(call.rank()) for letter in "xy")
    return Signature((Term(operand), Term(picked)), (Term(picked),), fixed).linear(0)


def index_select(call: Call) -> Signature:
    dim, dims = call.dim(1, "dim"), list(named(call.rank()))
    operand = Term(tuple(dims))
    dims[dim] = ("picked",)
    return Signature((operand, Term((("picked",),))), (Term(tuple(dims)),), frozenset({f"d{dim}"})).linear(0)


def scatter(call: Call) -> Signature:
    """All tensors have the target's dims; those of its size are free, except the one scattered along."""
    shape, dim = call.types[0].sizes, call.dim(1, "dim")
    terms, fixed = [], {f"d{dim}"}
    for t, type_ in enumerate(call.types):
        odd = {i for i, size in enumerate(type_.sizes) if i == dim or size != shape[i]}
        terms.append(Term(tuple((f"x{t}_{i}",) if i in odd and t else (f"d{i}",) for i in range(len(shape)))))
        fixed |= {f"x{t}_{i}" for i in odd} | {f"d{i}" for i in odd}
    return Signature(tuple(terms), (terms[0],), frozenset(fixed))


def index(call: Call) -> Signature:
    """`x[:, i, j]`: the index tensors broadcast together; their dims stand where the first of them stood."""
    at = _indexed(call.arg(1, "indices"))
    dims = named(call.rank())
    together = _broadcast_shape([type_.sizes for type_ in call.types[1:]])
    picked: tuple[Dim, ...] = tuple((f"i{n}",) for n in range(len(together)))
    operands = [Term(dims), *(Term(broadcast_dims(t.sizes, together, picked)) for t in call.types[1:])]
    return Signature(
        tuple(operands), (Term(_placed(dims, at, picked)),), frozenset(f for i in at for f in dims[i])
    ).linear(0)


def index_put(call: Call) -> Signature:
    """The dims that are not indexed are free; the places written to are the same on every rank."""
    at = _indexed(call.arg(1, "indices"))
    dims, indices = named(call.rank()), call.types[1:-1]
    together = _broadcast_shape([type_.sizes for type_ in indices])
    picked: tuple[Dim, ...] = tuple((f"i{n}",) for n in range(len(together)))
    shape = _placed(call.types[0].sizes, at, together)
    values = broadcast_dims(call.types[-1].sizes, shape, _placed(dims, at, picked))
    terms = (Term(dims), *(Term(broadcast_dims(t.sizes, together, picked)) for t in indices), Term(values))
    fixed = {f for i in at for f in dims[i]} | {f for dim in picked for f in dim}
    return Signature(terms, (Term(dims),), frozenset(fixed))


def index_add(call: Call) -> Signature:
    """Rows of the source go to places along `dim`; every other dim is free."""
    dim, dims = call.dim(1, "dim"), list(named(call.rank()))
    target = Term(tuple(dims))
    dims[dim] = ("rows",)
    return Signature((target, Term((("rows",),)), Term(tuple(dims))), (target,), frozenset({f"d{dim}", "rows"}))


def index_fill(call: Call) -> Signature:
    """Places along `dim` are overwritten; every other dim is free. A value given as a tensor is a single number."""
    dim, dims = call.dim(1, "dim"), named(call.rank())
    others = (Term((("rows",),)), *(Term(()) for _ in call.types[2:]))
    return Signature((Term(dims), *others), (Term(dims),), frozenset({f"d{dim}", "rows"}))


def take_along_dim(call: Call) -> Signature:
    """As `gather`, where both have the same other dims; else nothing is sharded."""
    source, index = (type_.sizes for type_ in call.types)
    dim = call.arg(2, "dim")
    if dim is None or len(source) != len(index):
        return invariant(call)
    dim, dims = dim % call.rank(), named(call.rank())
    if any(a != b for i, (a, b) in enumerate(zip(source, index, strict=True)) if i != dim):
        return invariant(call)
    operand = tuple((f"x{i}",) if i == dim else name for i, name in enumerate(dims))
    return Signature((Term(operand), Term(dims)), (Term(dims),), frozenset({f"x{dim}"})).linear(0)


def slice_scatter(call: Call) -> Signature:
    """Writing a slice is free on other dims, and on its own where the slice is all of it."""
    dim = call.dim(2, "dim", 0)
    return changed(call, () if call.types[0].sizes == call.types[1].sizes else (dim,)).linear()


def select_scatter(call: Call) -> Signature:
    dim, dims = call.dim(2, "dim"), named(call.rank())
    written = Term(dims[:dim] + dims[dim + 1 :])
    return Signature((Term(dims), written), (Term(dims),), frozenset(dims[dim])).linear()


def one_hot(call: Call) -> Signature:
    dims = named(call.rank())
    return Signature((Term(dims),), (Term((*dims, ("classes",))),), frozenset({"classes"}))


def _indexed(indices: tuple[Any, ...]) -> list[int]:
    return [i for i, item in enumerate(indices) if isinstance(item, Ref)]


def _placed(whole: Any, at: list[int], picked: Any) -> Any:
    """Indexed places that touch are replaced where they stand; apart from each other, they move to the front."""
    touching = at == list(range(at[0], at[0] + len(at)))
    before = at[0] if touching else 0
    kept = [item for i, item in enumerate(whole) if i not in at]
    return (*kept[:before], *picked, *kept[before:])


def _broadcast_shape(shapes: list[tuple[int, ...]]) -> tuple[int, ...]:
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    return tuple(max(sizes) for sizes in zip(*padded, strict=True))


RULES = {
    "aten.gather": Rule(gather, shown="... x!, ... i -> ... i, or + of the first"),
    "aten.index_select": Rule(index_select, shown="... x!, i -> ... i, or + of the first"),
    "aten.scatter": Rule(scatter, shown="... x!, ... y!, ... y! -> ... x!"),
    "aten.scatter_add": Rule(scatter, shown="... x!, ... y!, ... y! -> ... x!"),
    "aten.index.Tensor": Rule(index, shown="... x!, i -> ... i, or + of the first"),
    "aten.index_put": Rule(index_put, shown="... x!, i!, ... i! -> ... x!"),
    "aten.scatter_reduce": Rule(scatter, shown="... x!, ... y!, ... y! -> ... x!"),
    "aten.index_add": Rule(index_add, shown="... x!, i!, ... i! -> ... x!"),
    "aten.index_copy": Rule(index_add, shown="... x!, i!, ... i! -> ... x!"),
    "aten.slice_scatter": Rule(slice_scatter, shown="... n!, ... m! -> ... n!, or +"),
    "aten.select_scatter": Rule(select_scatter, shown="... n!, ... -> ... n!, or +"),
    "aten.index_fill": Rule(index_fill, shown="... x!, i! -> ... x!"),
    "aten.take_along_dim": Rule(take_along_dim, shown="... x!, ... i -> ... i, or + of the first"),
    "aten.one_hot": Rule(one_hot, shown="... -> ... n!"),
}
