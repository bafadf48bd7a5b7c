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
    grouping = _Grouping(source, target)
    for ins, outs in _groups(source, target):
        grouping.add(ins, outs)
    terms = Term(tuple(grouping.left)), Term(tuple(grouping.right))
    return Signature(terms[:1], terms[1:], frozenset(grouping.whole), given=tuple(grouping.sizes.items()))


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


class _Grouping:
    """Names for the common factors of two shapes, group by group."""

    def __init__(self, source: Sequence[int], target: Sequence[int]) -> None:
        self.source, self.target = source, target
        self.left: list[Dim] = [()] * len(source)
        self.right: list[Dim] = [()] * len(target)
        self.sizes: dict[str, int] = {}
        self.whole: set[str] = set()

    def add(self, ins: list[int], outs: list[int]) -> None:
        """Cut both sides at every boundary of either: these are the common factors, if each divides the next.

        Where they do not (4x3 to 6x2), only the outermost common part moves as one; the rest stays whole.
        """
        bounds = sorted({1} | _bounds(self.source, ins) | _bounds(self.target, outs))
        if all(b % a == 0 for a, b in pairwise(bounds)):
            pieces = [(end, self._name(end // start)) for start, end in pairwise(bounds)]
            _assign(self.source, ins, pieces, self.left)
            _assign(self.target, outs, pieces, self.right)
            return
        common = gcd(self.source[ins[0]], self.target[outs[0]])
        outer: Dim = (self._name(common),) if common > 1 else ()
        for shape, dims, side in ((self.source, ins, self.left), (self.target, outs, self.right)):
            side[dims[0]] = outer + self._rest(shape[dims[0]] // common)
            for dim in dims[1:]:
                side[dim] = self._rest(shape[dim])

    def _name(self, size: int) -> str:
        name = f"d{len(self.sizes)}"
        self.sizes[name] = size
        return name

    def _rest(self, size: int) -> Dim:
        if size == 1:
            return ()
        name = self._name(size)
        self.whole.add(name)
        return (name,)


def _bounds(shape: Sequence[int], dims: list[int]) -> set[int]:
    return {prod(shape[i] for i in dims[: n + 1]) for n in range(len(dims))}


def _assign(shape: Sequence[int], dims: list[int], pieces: list[tuple[int, str]], side: list[Dim]) -> None:
    start = 1
    for dim in dims:
        end = start * shape[dim]
        side[dim] = tuple(name for bound, name in pieces if start < bound <= end)
        start = end
