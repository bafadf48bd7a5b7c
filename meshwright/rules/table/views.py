"""Ops that only rearrange: every one is linear, so every one carries partial sums too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from meshwright.rules.rule import Call, Lowering, Rule, Split, with_arg
from meshwright.rules.shapes import arranged, changed, named, reshaped
from meshwright.rules.signature import Dim, Signature, Term

Build = Callable[[Call], Signature]


def reshape(call: Call) -> Signature:
    return reshaped(call).linear()


def movedim(call: Call) -> Signature:
    dims = list(named(call.rank()))
    moved = dims.pop(call.dim(1, "source"))
    dims.insert(call.dim(2, "destination"), moved)
    return arranged(call, dims).linear()


def swap_last(call: Call) -> Signature:
    dims = named(call.rank())
    return arranged(call, (*dims[:-2], dims[-1], dims[-2])).linear()


def transpose(call: Call) -> Signature:
    dims = list(named(call.rank()))
    a, b = call.dim(1, "dim0"), call.dim(2, "dim1")
    dims[a], dims[b] = dims[b], dims[a]
    return arranged(call, dims).linear()


def permute(call: Call) -> Signature:
    dims = named(call.rank())
    return arranged(call, [dims[i] for i in call.arg(1, "dims")]).linear()


def reverse(call: Call) -> Signature:
    return arranged(call, named(call.rank())[::-1]).linear()


def unsqueeze(call: Call) -> Signature:
    dims = list(named(call.rank()))
    dims.insert(call.arg(1, "dim") % (call.rank() + 1), ())
    return arranged(call, dims).linear()


def squeeze(call: Call) -> Signature:
    """Without dims given, every dim of size one goes; with them, those of them that have size one."""
    shape = call.types[0].sizes
    given = call.arg(1, "dim")
    wanted = range(call.rank()) if given is None else given if isinstance(given, tuple) else (given,)
    gone = {dim % max(call.rank(), 1) for dim in wanted}
    kept = [dim for i, dim in enumerate(named(call.rank())) if not (i in gone and shape[i] == 1)]
    return arranged(call, kept, {f"d{i}" for i in gone if i < len(shape) and shape[i] == 1}).linear()


def expand(call: Call) -> Signature:
    """A dim that grows is a new factor of the result alone: each rank makes its part from the whole operand."""
    source, target = call.types[0].sizes, call.result_types[0].sizes
    dims, offset = named(len(target)), len(target) - len(source)
    operand = tuple(dims[offset + i] if size == target[offset + i] else () for i, size in enumerate(source))
    others = tuple(Term(dims) for _ in call.types[1:])  # `expand_as` reads the other's shape
    return Signature((Term(operand), *others), (Term(dims),)).linear(0)


def to_complex(call: Call) -> Signature:
    dims = named(call.rank())
    return arranged(call, dims[:-1], dims[-1]).linear()


def to_real(call: Call) -> Signature:
    return arranged(call, (*named(call.rank()), ("parts",)), {"parts"}).linear()


def slice_(call: Call) -> Signature:
    """Slicing is free on other dims, and on its own where it takes all of it."""
    dim = call.dim(1, "dim", 0)
    whole = call.types[0].sizes == call.result_types[0].sizes and call.arg(4, "step", 1) == 1
    return changed(call, () if whole else (dim,)).linear()


def select(call: Call) -> Signature:
    dim, dims = call.dim(1, "dim"), named(call.rank())
    return arranged(call, dims[:dim] + dims[dim + 1 :], dims[dim]).linear()


def unbind(call: Call) -> Signature:
    dim, dims = call.dim(1, "dim", 0), named(call.rank())
    return arranged(call, dims[:dim] + dims[dim + 1 :], dims[dim]).linear()


def along_dim(position: int, name: str = "dim", default: int | None = 0, linear: bool = True) -> Build:
    """Ops that cut, join or extend along one dim."""

    def build(call: Call) -> Signature:
        signature = changed(call, (call.dim(position, name, default),))
        return signature.linear() if linear else signature

    return build


def stack(call: Call) -> Signature:
    dims = named(call.rank())
    at = call.arg(1, "dim", 0) % (call.rank() + 1)
    result = Term((*dims[:at], ("stacked",), *dims[at:]))
    return Signature((Term(dims),) * len(call.types), (result,), frozenset({"stacked"})).linear()


def diagonal(call: Call) -> Signature:
    """Two dims stay whole and become one, at the end."""
    names = named(call.rank())
    gone = {call.dim(2, "dim1", 0), call.dim(3, "dim2", 1)}
    kept = [name for i, name in enumerate(names) if i not in gone]
    return arranged(call, (*kept, ("diagonal",)), {"diagonal", *(f"d{i}" for i in gone)}).linear()


def unfold(call: Call) -> Signature:
    """Windows along one dim, which stays whole; their elements are a new dim at the end."""
    names, dim = named(call.rank()), call.dim(1, "dimension")
    result = (*names[:dim], ("windows",), *names[dim + 1 :], ("window",))
    return arranged(call, result, {"windows", "window", f"d{dim}"}).linear()


def moved_dims(call: Call) -> Signature:
    source, target = ([d % call.rank() for d in call.arg(*place)] for place in ((1, "source"), (2, "destination")))
    names = named(call.rank())
    rest = iter(name for i, name in enumerate(names) if i not in source)
    placed = {to: names[at] for at, to in zip(source, target, strict=True)}
    return arranged(call, [placed[i] if i in placed else next(rest) for i in range(call.rank())]).linear()


def along_dims(position: int, name: str = "dims") -> Build:
    """Ops that move elements within the dims they list; without a list, within all."""

    def build(call: Call) -> Signature:
        given = call.arg(position, name)
        listed = range(call.rank()) if given in (None, ()) else given if isinstance(given, tuple) else (given,)
        return changed(call, {dim % max(call.rank(), 1) for dim in listed}).linear()

    return build


def resized_dims(call: Call) -> Signature:
    """Ops that grow or shrink some dims (`pad`, `repeat`): those stay whole."""
    source, target = call.types[0].sizes, call.result_types[0].sizes
    offset = len(target) - len(source)
    operand: list[Dim] = [(f"d{i}",) for i in range(offset, len(target))]
    same = [i >= offset and source[i - offset] == target[i] for i in range(len(target))]
    operand = [dim if same[i + offset] else (f"x{i}",) for i, dim in enumerate(operand)]
    result: list[Dim] = [(f"d{i}",) if same[i] else (f"y{i}",) for i in range(len(target))]
    fixed = {f"x{i}" for i in range(len(source))} | {f"y{i}" for i in range(len(target))}
    return Signature((Term(tuple(operand)),), (Term(tuple(result)),), frozenset(fixed)).linear()


def pad(call: Call) -> Signature:
    """`pad` lists (before, after) from the last dim backwards; a dim padded by nothing is free."""
    amounts = call.arg(1, "pad")
    touched = {call.rank() - 1 - i // 2 for i, amount in enumerate(amounts) if amount}
    return changed(call, touched)


def repeat_interleave(call: Call) -> Signature:
    """Each element of the dim becomes a run of copies: the old dim is the outer part of the new one."""
    if call.arg(2, "dim") is None:
        return changed(call, range(call.rank()))
    dims, dim = list(named(call.rank())), call.dim(2, "dim")
    dims[dim] = (*dims[dim], "copies")
    return arranged(call, dims, {"copies"}).linear()


def lower_repeat_interleave(split: Split) -> Lowering:
    if split.call.arg(3, "output_size") is None:
        return Lowering(split.local)
    dim = split.call.dim(2, "dim")
    return Lowering(with_arg(split.local, 3, "output_size", split.results[0].type.shape[dim]))


def local_shape(position: int, name: str) -> Callable[[Split], Lowering]:
    """Ops that are told the shape of their result are told the local one."""

    def lower(split: Split) -> Lowering:
        return Lowering(with_arg(split.local, position, name, split.results[0].type.shape))

    return lower


def as_reshape(split: Split) -> Lowering:
    """A view of the whole may need a copy of a piece, whose strides differ."""
    op = with_arg(split.local, 1, "size", split.results[0].type.shape)
    if not any(split.factors):
        return Lowering(op)
    return Lowering(
        replace(op, target="aten.reshape.default", args=(op.args[0], split.results[0].type.shape), kwargs=())
    )


def local_pieces(split: Split) -> Lowering:
    """`unflatten(x, dim, sizes)`: the sizes are those of the result's dims at that place."""
    call = split.call
    dim, count = call.dim(1, "dim"), len(call.arg(2, "sizes"))
    return Lowering(with_arg(split.local, 2, "sizes", split.results[0].type.shape[dim : dim + count]))


_RESHAPE = "dims merged and split, as (a b) c -> a b c, or +"
_MOVED = "... m n -> ... n m, or +"
_MOVED_IN = "... n! -> ... n!, or +"
_CUT = "... n! -> ... m!, or +"
RULES = {
    "aten.view.default": Rule(reshape, as_reshape, shown=_RESHAPE, uneven=True),
    "aten._unsafe_view": Rule(reshape, as_reshape, shown=_RESHAPE, uneven=True),
    "aten.reshape": Rule(reshape, local_shape(1, "shape"), shown=_RESHAPE, uneven=True),
    "aten.flatten": Rule(reshape, shown=_RESHAPE),
    "aten.unflatten": Rule(reshape, local_pieces, shown=_RESHAPE, uneven=True),
    "aten.transpose": Rule(transpose, shown=_MOVED),
    "aten.permute": Rule(permute, shown=_MOVED),
    "aten.t": Rule(reverse, shown=_MOVED),
    "aten.numpy_T": Rule(reverse, shown=_MOVED),
    "aten.swapaxes": Rule(transpose, shown=_MOVED),
    "aten.swapdims": Rule(transpose, shown=_MOVED),
    "aten.movedim.int": Rule(movedim, shown=_MOVED),
    "aten.movedim.intlist": Rule(moved_dims, shown=_MOVED),
    "aten.moveaxis.int": Rule(movedim, shown=_MOVED),
    "aten.moveaxis.intlist": Rule(moved_dims, shown=_MOVED),
    "aten.mT": Rule(swap_last, shown=_MOVED),
    "aten.adjoint": Rule(swap_last, shown=_MOVED),
    "aten.ravel": Rule(reshape, shown=_RESHAPE),
    "aten.broadcast_to": Rule(expand, local_shape(1, "size"), shown="... 1 -> ... n, or +", uneven=True),
    "aten.diagonal": Rule(diagonal, shown="... m! n! -> ... k!, or +"),
    "aten.unfold": Rule(unfold, shown="... n! -> ... w! k!, or +", filled=True),  # its backward: work over windows
    "aten.tensor_split.sections": Rule(along_dim(2), shown=_CUT),
    "aten.tensor_split.indices": Rule(along_dim(2), shown=_CUT),
    "aten.concat.default": Rule(along_dim(1), shown=_CUT),
    "aten.concatenate.default": Rule(along_dim(1), shown=_CUT),
    "aten.unsqueeze": Rule(unsqueeze, shown="... -> ... 1, or +"),
    "aten.squeeze": Rule(squeeze, shown="... 1 -> ..., or +"),
    "aten.expand": Rule(expand, local_shape(1, "size"), shown="... 1 -> ... n, or +", uneven=True),
    "aten.expand_as": Rule(expand, shown="... 1 -> ... n, or +"),
    "aten.view_as_complex": Rule(to_complex, shown="... 2! -> ..."),
    "aten.view_as_real": Rule(to_real, shown="... -> ... 2!"),
    "aten.slice": Rule(slice_, shown=_CUT),
    "aten.select.int": Rule(select, shown="... n! -> ..., or +"),
    "aten.unbind": Rule(unbind, shown="... n! -> ..., or +"),
    "aten.chunk": Rule(along_dim(2), shown=_CUT),
    "aten.split": Rule(along_dim(2), shown=_CUT),
    "aten.split_with_sizes": Rule(along_dim(2), shown=_CUT),
    "aten.cat": Rule(along_dim(1), shown=_CUT),
    "aten.narrow": Rule(along_dim(1, default=None), shown=_CUT),
    "aten.diff": Rule(along_dim(2, default=-1), shown=_CUT),
    "aten.stack": Rule(stack, shown="..., ... -> ... n!, or +"),
    "aten.roll": Rule(along_dims(2), shown=_MOVED_IN, filled=True),  # places modulo sizes
    "aten.flip": Rule(along_dims(1), shown=_MOVED_IN),
    "aten.tile": Rule(resized_dims, shown=_CUT),
    "aten.glu": Rule(along_dim(1, default=-1, linear=False), shown="... n! -> ... m!"),
    "aten.repeat": Rule(resized_dims, shown=_CUT),
    "aten.repeat_interleave.self_int": Rule(
        repeat_interleave, lower_repeat_interleave, shown="... n -> ... (n m), or +"
    ),
    "aten.pad": Rule(pad, shown="... n! -> ... m!"),
    "aten.constant_pad_nd": Rule(pad, shown="... n! -> ... m!"),
}
