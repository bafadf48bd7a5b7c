"""Factor notation: what the dims of an op's tensors mean.

`"... k, n k, n[k=I] -> ... n"` reads: three operands and a result; `k` is contracted, `n` is new, the leading
dims are shared. One name is one *factor*. The marks:

    ...      all leading dims, as the factors d0, d1, ...
    (h d)    a merged dim, outermost factor first; only the outermost can be sharded
    1        a dim of size one, or one that broadcasts
    h!       a factor that cannot be sharded
    n[k=I]   on an axis given to `k`, this tensor is `I` instead of what follows from the dims

What follows from the dims, on an axis given to factor `f`: a tensor with `f` is sharded there, an operand without
it is `R`, a result without it is `P` (so a factor that is missing from the result must be one the op sums over).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from meshwright.caches import CACHES
from meshwright.capture.program import TensorType
from meshwright.errors import RuleError
from meshwright.layout.states import I, P, R, S, State

Dim = tuple[str, ...]
"""The factors of one tensor dim, outermost first; none where the dim has size one or broadcasts."""

CARRY = "+"
"""The factor of an axis on which a linear op passes partial sums through."""

_STATES = {"I": I, "P": P, "R": R}
_TERM = re.compile(r"^(?P<dims>[^\[\]]*)(\[(?P<overrides>[^\[\]]*)\])?$")
_DIM = re.compile(r"\([\w! ]*\)|\.\.\.|\w+!?")


@dataclass(frozen=True, slots=True)
class Term:
    """One tensor of a signature; `overrides` are (factor, state) where the dims alone would say otherwise."""

    dims: tuple[Dim, ...]
    overrides: tuple[tuple[str, State], ...] = ()

    def __str__(self) -> str:
        dims = " ".join(_dim_text(dim) for dim in self.dims)
        marks = " ".join(f"{factor}={state}" for factor, state in self.overrides)
        return f"{dims}[{marks}]" if marks else dims

    def state(self, factor: str, absent: State) -> State:
        """Where the tensor is on an axis given to `factor`; `absent` where it does not have the factor."""
        for name, state in self.overrides:
            if name == factor:
                return state
        return next((S(i) for i, dim in enumerate(self.dims) if factor in dim), absent)


@dataclass(frozen=True, slots=True)
class Signature:
    """The factors of one op at known ranks. `carried`: the operands that are `P` where the op carries `P`.

    `given`: sizes of factors that no dim shows by itself, such as the groups of a normalisation.
    """

    operands: tuple[Term, ...]
    results: tuple[Term, ...]
    fixed: frozenset[str] = frozenset()
    carried: frozenset[int] = frozenset()
    given: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        sides = (", ".join(map(str, terms)) for terms in (self.operands, self.results))
        return " -> ".join(sides)

    def terms(self) -> tuple[Term, ...]:
        return self.operands + self.results

    def factors(self) -> tuple[str, ...]:
        """All factors in order of first appearance; last those that stand in no dim but say where tensors are."""
        shown = dict.fromkeys(f for term in self.terms() for dim in term.dims for f in dim)
        return tuple(shown | dict.fromkeys(f for term in self.terms() for f, _ in term.overrides))

    def choices(self) -> tuple[str | None, ...]:
        """What an axis may be given to: none, each factor that can be sharded, `+` for a linear op."""
        free: list[str | None] = [f for f in self.factors() if self.is_shardable(f)]
        return (None, *free, *([CARRY] if self.carried else []))

    def is_shardable(self, factor: str) -> bool:
        return factor not in self.fixed and all(_outermost_once(term, factor) for term in self.terms())

    def states(self, factor: str | None) -> tuple[tuple[State, ...], tuple[State, ...]]:
        """Operand and result states on an axis given to `factor`."""
        if factor is None:
            return (I,) * len(self.operands), (I,) * len(self.results)
        if factor == CARRY:
            states = tuple(P if i in self.carried else R for i in range(len(self.operands)))
            return states, (P,) * len(self.results)
        operands = tuple(term.state(factor, R) for term in self.operands)
        return operands, tuple(term.state(factor, P) for term in self.results)

    def linear(self, *operands: int) -> Signature:
        """The same, carrying `P` from these operands to the results; without any, from all."""
        return replace(self, carried=frozenset(operands or range(len(self.operands))))

    def sizes(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> dict[str, int]:
        """The size of every factor, checked against every dim it stands in."""
        types = (*operands, *results)
        found = dict(self.given)
        for dim, size in _sized_dims(self.terms(), types):
            if len(dim) == 1 and found.setdefault(dim[0], size) != size:
                raise RuleError(f"factor {dim[0]} of {self} is {found[dim[0]]} and {size}", "one size")
        for dim, size in _sized_dims(self.terms(), types):
            _complete(found, dim, size, self)
        return found


@dataclass(frozen=True, slots=True)
class Pattern:
    """A signature as written, before the ranks and the optional operands are known."""

    text: str
    operands: tuple[Term, ...]
    results: tuple[Term, ...]
    fixed: frozenset[str]

    def bind(self, present: Sequence[bool], types: Sequence[TensorType]) -> Signature:
        """The signature for operands of these types; `present` says which written operands are given."""
        terms = [term for term, given in zip(self.operands, present, strict=False) if given]
        if len(terms) != len(types):
            raise RuleError(f"{len(types)} operands for the rule {self.text!r}", f"{len(terms)} tensors")
        leading = _leading(terms, types, self.text)
        return Signature(
            tuple(_expand(term, leading) for term in terms),
            tuple(_expand(term, leading) for term in self.results),
            self.fixed,
        )


@CACHES.memoized(maxsize=None)
def parse(text: str) -> Pattern:
    """A signature from its text form."""
    left, arrow, right = text.partition("->")
    if not arrow:
        raise RuleError(f"the signature {text!r} has no arrow", "operands -> results, as in 'm k, k n -> m n'")
    fixed = frozenset(re.findall(r"(\w+)!", text))
    operands, results = (tuple(map(_term, side.split(","))) for side in (left, right))
    known = {factor for term in operands + results for dim in term.dims for factor in dim}
    named = {factor for term in operands + results for factor, _ in term.overrides}
    if unknown := {factor for factor in named - known if not ("..." in known and re.fullmatch(r"d\d+", factor))}:
        raise RuleError(f"the signature {text!r} says what happens on {sorted(unknown)}", f"one of {sorted(known)}")
    return Pattern(text, operands, results, fixed)


def _term(text: str) -> Term:
    match = _TERM.match(text.strip())
    if match is None:
        raise RuleError(f"the term {text!r} of a signature", "dims and at most one [factor=state]")
    pairs = [mark.split("=") for mark in (match["overrides"] or "").split()]
    if any(len(pair) != 2 or pair[1] not in _STATES for pair in pairs):
        raise RuleError(f"the mark in {text!r} of a signature", "factor=state, the state one of I, P, R")
    overrides = tuple((factor, _STATES[state]) for factor, state in pairs)
    return Term(tuple(_dim(token) for token in _tokens(match["dims"])), overrides)


def _tokens(text: str) -> list[str]:
    tokens = _DIM.findall(text)
    if "".join(tokens).replace(" ", "") != text.replace(" ", ""):
        raise RuleError(f"the dims {text!r} of a signature", "names, 1, ..., (h d) and h!")
    return tokens


def _dim(token: str) -> Dim:
    names = token.strip("()").replace("!", "").split()
    return tuple(name for name in names if name != "1")


def _dim_text(dim: Dim) -> str:
    return "1" if not dim else dim[0] if len(dim) == 1 else f"({' '.join(dim)})"


def _leading(terms: Sequence[Term], types: Sequence[TensorType], text: str) -> tuple[Dim, ...]:
    """The dims `...` stands for, from the first operand that has them."""
    for term, type_ in zip(terms, types, strict=True):
        if ("...",) in term.dims:
            count = len(type_.shape) - len(term.dims) + 1
            if count < 0:
                raise RuleError(f"a tensor {type_} for {term} of {text!r}", f"at least {len(term.dims) - 1} dims")
            return tuple((f"d{i}",) for i in range(count))
    return ()


def _expand(term: Term, leading: tuple[Dim, ...]) -> Term:
    dims = (leading if dim == ("...",) else (dim,) for dim in term.dims)
    return replace(term, dims=tuple(dim for group in dims for dim in group))


def _outermost_once(term: Term, factor: str) -> bool:
    holding = [dim for dim in term.dims if factor in dim]
    return not holding or (len(holding) == 1 and holding[0][0] == factor and holding[0].count(factor) == 1)


def _sized_dims(terms: Sequence[Term], types: Sequence[TensorType]) -> Iterator[tuple[Dim, int]]:
    for term, type_ in zip(terms, types, strict=True):
        if len(term.dims) != len(type_.sizes):
            raise RuleError(f"a tensor {type_} for the term '{term}' of a rule", f"{len(term.dims)} dims")
        yield from zip(term.dims, type_.sizes, strict=True)


def _complete(found: dict[str, int], dim: Dim, size: int, signature: Signature) -> None:
    """Take a merged dim's one unknown factor from its size, and check the product."""
    unknown = [factor for factor in dim if factor not in found]
    if len(unknown) > 1:
        raise RuleError(f"the sizes of {' and '.join(unknown)} in {signature}", "each to follow from some dim")
    product = prod(found.get(factor, 1) for factor in dim)
    if unknown and product and size % product == 0:
        found[unknown[0]] = size // product
    elif product != size:
        raise RuleError(f"a dim of size {size} for {_dim_text(dim)} of {signature}", f"size {product}")
