"""Signatures that follow from shapes: broadcasting, reshaping, ops that act along some dims."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise
from math import gcd, prod

from meshwright.capture.program import TensorType
from meshwright.rules.rule import Call
from meshwright.rules.signature import Dim, Signature, Term


def named(count: int) -> tuple[Dim, ...]:
    """One factor per dim: d0, d1, ..."""
    return tuple((f"d{i}",) for i in range(count))


def opaque(types: Sequence[TensorType]) -> tuple[tuple[Term, ...], frozenset[str]]:
    """A term per tensor whose dims cannot be sharded, and the names used."""
    terms = [Term(tuple((f"x{t}_{i}",) for i in range(len(type_.shape)))) for t, type_ in enumerate(types)]
    return tuple(terms), frozenset(f for term in terms for dim in term.dims for f in dim)


def broadcast_dims(shape: Sequence[int], to: Sequence[int], dims: Sequence[Dim] | None = None) -> tuple[Dim, ...]:
    """The dims of a tensor that broadcasts to a shape whose dims are `dims` (d0, d1, ... by default)."""
    dims = named(len(to)) if dims is None else dims
    offset = len(to) - len(shape)
    return tuple(dims[offset + i] if size == to[offset + i] else () for i, size in enumerate(shape))


def broadcast(call: Call) -> Signature:
    """Elementwise over operands that broadcast to the first result; all results alike."""
    shape = call.result_types[0].sizes
    operands = tuple(Term(broadcast_dims(type_.sizes, shape)) for type_ in call.types)
    return Signature(operands, (Term(named(len(shape))),) * len(call.op.results))


def along(call: Call, dims: Collection[int]) -> Signature:
    """Same shape in and out, working along `dims` of the first operand, which therefore stay whole."""
    term = Term(named(call.rank()))
    fixed = frozenset(f"d{dim}" for dim in dims)
    return Signature((term,) * len(call.types), (term,) * len(call.op.results), fixed)


def changed(call: Call, dims: Collection[int]) -> Signature:
    """Every tensor has the dims of the first operand, but `dims` differ in size and stay whole."""
    terms: list[Term] = []
    fixed: set[str] = set()
    for t in range(len(call.types) + len(call.op.results)):
        term = Term(tuple((f"x{t}_{i}",) if i in dims else (f"d{i}",) for i in range(call.rank())))
        fixed |= {f"x{t}_{i}" for i in dims}
        terms.append(term)
    count = len(call.types)
    return Signature(tuple(terms[:count]), tuple(terms[count:]), frozenset(fixed))


def arranged(call: Call, result: Sequence[Dim], fixed: Collection[str] = ()) -> Signature:
    """One operand with the dims d0, d1, ...; every result with the dims given."""
    return Signature((Term(named(call.rank())),), (Term(tuple(result)),) * len(call.op.results), frozenset(fixed))


def reshaped(call: Call) -> Signature:
    """The merges and splits that lead from the operand's shape to the result's."""
    source, target = call.types[0].sizes, call.result_types[0].sizes
    if 0 in source:
        terms, fixed = opaque((call.types[0], call.result_types[0]))
        return Signature(terms[:1], terms[1:], fixed)
    names = (f"d{i}" for i in range(len(source) + len(target)))
    left: list[Dim] = [()] * len(source)
    right: list[Dim] = [()] * len(target)
    whole: set[str] = set()
    for ins, outs in _groups(source, target):
        whole |= _refine(source, target, ins, outs, names, left, right)
    return Signature((Term(tuple(left)),), (Term(tuple(right)),), frozenset(whole))


def _groups(source: Sequence[int], target: Sequence[int]) -> Iterator[tuple[list[int], list[int]]]:
    """Runs of dims of equal product on both sides, shortest first; dims of size one belong to none."""
    ins = [i for i, size in enumerate(source) if size != 1]
    outs = [i for i, size in enumerate(target) if size != 1]
    while ins:
        left, right = [ins.pop(0)], [outs.pop(0)]
        while (a := prod(source[i] for i in left)) != (b := prod(target[i] for i in right)):
            if a < b:
                left.append(ins.pop(0))
            else:
                right.append(outs.pop(0))
        yield left, right


def _refine(
    source: Sequence[int],
    target: Sequence[int],
    ins: list[int],
    outs: list[int],
    names: Iterator[str],
    left: list[Dim],
    right: list[Dim],
) -> set[str]:
    """Name the factors of one group; returns those that must stay whole.

    Cutting both sides at every boundary of either gives the common factors, if each boundary divides the next. Where
    they do not (4x3 to 6x2), only the outermost common part moves as one; the rest stays whole.
    """
    bounds = sorted(_bounds(source, ins) | _bounds(target, outs))
    if all(b % a == 0 for a, b in pairwise(bounds)):
        pieces = [(end, next(names)) for end in bounds]
        _assign(source, ins, pieces, left)
        _assign(target, outs, pieces, right)
        return set()
    outer = next(names) if gcd(source[ins[0]], target[outs[0]]) > 1 else None
    whole: set[str] = set()
    for shape, dims, side in ((source, ins, left), (target, outs, right)):
        for position, dim in enumerate(dims):
            rest = next(names, f"x{len(whole)}")
            head = (outer,) if outer and position == 0 else ()
            exhausted = bool(head) and shape[dim] == gcd(source[ins[0]], target[outs[0]])
            side[dim] = head if exhausted else (*head, rest)
            whole |= set() if exhausted else {rest}
    return whole


def _bounds(shape: Sequence[int], dims: list[int]) -> set[int]:
    return {prod(shape[i] for i in dims[: n + 1]) for n in range(len(dims))}


def _assign(shape: Sequence[int], dims: list[int], pieces: list[tuple[int, str]], side: list[Dim]) -> None:
    start = 1
    for dim in dims:
        end = start * shape[dim]
        side[dim] = tuple(name for bound, name in pieces if start < bound <= end)
        start = end
