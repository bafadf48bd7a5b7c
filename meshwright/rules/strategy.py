"""Strategy: one way to run one op on a mesh, and the enumeration of all of them.

A mesh axis is given to one factor of the op or to none; several axes may share a factor. The strategies of an op
are the product of these choices over the axes, less those that would cut a factor unevenly; asked for, those too where
the rule allows it and one axis cuts the factor. Then ranks differ: a strategy's local sizes are those of the rank at
the coordinates `at`, the first rank's, which are the largest, unless given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import prod
from typing import NamedTuple

from meshwright.caches import CACHES
from meshwright.capture.program import FLOATS, Op, TensorType, Value
from meshwright.cluster.mesh import Mesh
from meshwright.errors import VerifyError
from meshwright.layout.states import Layout, State
from meshwright.layout.steps import Collective
from meshwright.rules.rule import Call, Rule, Split
from meshwright.rules.signature import CARRY, Signature

Factors = tuple[str | None, ...]
Coordinates = tuple[int, ...]


class Way(NamedTuple):
    """What one mesh axis may be given to, and where operands and results are on it then."""

    factor: str | None
    operands: tuple[State, ...]
    results: tuple[State, ...]


Narrow = Callable[[int, Sequence[Way]], Sequence[Way]]
"""Of the ways of the axis of this index, those that are looked at."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """`operands` and `results` align with `op.operands()` and `op.results`; `lowering` is what a rank runs.

    The collectives are those inside the lowering; conversions between ops are not part of a strategy. `pieces`: the
    types of the operands as a rank has them.
    """

    factors: Factors
    operands: tuple[Layout, ...]
    results: tuple[Layout, ...]
    lowering: Op
    collectives_forward: tuple[Collective, ...] = ()
    collectives_backward: tuple[Collective, ...] = ()
    at: Coordinates | None = None
    pieces: tuple[TensorType, ...] = ()

    @property
    def text(self) -> str:
        """The factors as written in plans and pins: `b,n`, with `-` for an axis given to none."""
        return ",".join(factor or "-" for factor in self.factors)

    def __str__(self) -> str:
        operands, results = (", ".join(map(str, side)) for side in (self.operands, self.results))
        inside = [str(collective) for collective in self.collectives_forward]
        inside += [f"backward {collective}" for collective in self.collectives_backward]
        return f"{self.text}: {operands} -> {results}" + (f" with {', '.join(inside)}" if inside else "")

    def verify(self, op: Op, values: Mapping[str, Value], mesh: Mesh) -> None:
        """Raise VerifyError unless this can be a strategy of `op` on `mesh`: layouts, local types, axes."""
        where = f"strategy {self} of {op}"
        if self.lowering.operands() != op.operands():
            raise VerifyError(f"{where} reads {self.lowering.operands()}", f"{op.operands()}, as the op does")
        given = len(self.factors), len(self.operands), len(self.results), len(self.lowering.results)
        wanted = len(mesh.sizes), len(op.operands()), len(op.results), len(op.results)
        if given != wanted:
            raise VerifyError(f"{where} has {given} factors, operands, results and local results", f"{wanted}")
        for type_, layout in zip(Call.of(op, values).types, self.operands, strict=True):
            layout.check(type_.sizes, mesh.sizes)
        for value, layout, local in zip(op.results, self.results, self.lowering.results, strict=True):
            layout.check(value.type.sizes, mesh.sizes)
            if local.type != local_type(value.type, layout, mesh, self.at):
                raise VerifyError(f"{where} makes {local.type}", f"{local_type(value.type, layout, mesh, self.at)}")
        for collective in self.collectives_forward + self.collectives_backward:
            mesh.axis(collective.axis)


def strategies_of(rule: Rule, op: Op, values: Mapping[str, Value], mesh: Mesh) -> tuple[Strategy, ...]:
    """Every way to run `op` on `mesh` under a rule that need not be the one that serves it."""
    builder = StrategyBuilder.under(rule, Call.of(op, values), mesh)
    return tuple(builder.build(factors) for factors in builder.choices())


def local_operands(strategy: Strategy, op: Op, values: Mapping[str, Value], mesh: Mesh) -> tuple[Value, ...]:
    """The operands as a rank has them under this strategy, position by position."""
    pairs = zip(op.operands(), strategy.operands, strict=True)
    return tuple(replace(values[name], type=local_type(values[name].type, layout, mesh)) for name, layout in pairs)


def local_type(type_: TensorType, layout: Layout, mesh: Mesh, at: Coordinates | None = None) -> TensorType:
    return TensorType(layout.local_shape(type_.sizes, mesh.sizes, at), type_.dtype)


@CACHES.memoized(maxsize=1 << 14)
def _layout(states: tuple[State, ...]) -> Layout:
    """Strategies have few different layouts: each is made, checked and hashed once."""
    return Layout(states)


def parse_factors(text: str) -> Factors:
    return tuple(None if factor.strip() == "-" else factor.strip() for factor in text.split(","))


@dataclass(frozen=True, slots=True)
class StrategyBuilder:
    """What all strategies of one op share, worked out once."""

    rule: Rule
    call: Call
    mesh: Mesh
    signature: Signature
    sizes: Mapping[str, int]
    ways: dict[str | None, Way] = field(default_factory=dict)

    @classmethod
    def under(cls, rule: Rule, call: Call, mesh: Mesh) -> StrategyBuilder:
        signature = rule.bind(call)
        return cls(rule, call, mesh, signature, signature.sizes(call.types, call.result_types))

    def choices(self, uneven: bool = False, narrow: Narrow | None = None) -> Iterator[Factors]:
        loose, hidden = self._loose(uneven), self._hidden()
        for factors in product(*self._narrowed(self._per_axis(), loose, narrow)):
            if self._allows(factors, loose, hidden):
                yield factors

    def has(self, factors: Factors, uneven: bool = False) -> bool:
        """Whether it is among the choices."""
        known = len(factors) == len(self.mesh.sizes) and set(factors) <= set(self._per_axis())
        return known and self._allows(factors, self._loose(uneven), self._hidden())

    def _per_axis(self) -> list[str | None]:
        # Partial sums of whole numbers are nothing anyone hands around, and to cast a part is not to cast the sum.
        carried = {self.call.types[i].dtype for i in self.signature.carried}
        carries = {type_.dtype for type_ in self.call.result_types} == carried and carried <= FLOATS
        return [choice for choice in self.signature.choices() if carries or choice != CARRY]

    def _loose(self, uneven: bool) -> frozenset[str]:
        return self.rule.uneven_factors(self.call, self.signature) if uneven else frozenset()

    def _allows(self, factors: Factors, loose: frozenset[str], hidden: frozenset[str]) -> bool:
        given = (f for f in factors if f and f != CARRY)
        return all(self._fits(f, factors, loose) for f in given) and self._is_consistent(factors, hidden)

    def _narrowed(
        self, per_axis: list[str | None], loose: frozenset[str], narrow: Narrow | None
    ) -> list[list[str | None]]:
        """What each axis may be given to."""
        axes = range(len(self.mesh.sizes))
        if narrow is None:
            return [per_axis for _ in axes]
        found = []
        for axis in axes:
            alone = [tuple(factor if i == axis else None for i in axes) for factor in per_axis]
            fitting = [
                self._way(factor)
                for factor, factors in zip(per_axis, alone, strict=True)
                if not factor or factor == CARRY or self._fits(factor, factors, loose)
            ]
            found.append([way.factor for way in narrow(axis, fitting)])
        return found

    def _way(self, factor: str | None) -> Way:
        if factor not in self.ways:
            self.ways[factor] = Way(factor, *self.signature.states(factor))
        return self.ways[factor]

    def _fits(self, factor: str, factors: Factors, loose: frozenset[str]) -> bool:
        """Whether a factor can be cut by the axes given to it: evenly, or by one axis where pieces may differ."""
        size, ways = self.sizes[factor], self._ways(factor, factors)
        if size % ways == 0:
            return True
        if self.rule.filled and (ways - 1) * -(-size // ways) >= size:
            return False
        return factor in loose and factors.count(factor) == 1

    def _is_consistent(self, factors: Factors, hidden: frozenset[str]) -> bool:
        """One of the factors that exclude each other, and even pieces where a factor stands in no dim."""
        if len(self.rule.apart.intersection(factors)) > 1:
            return False
        if not hidden.intersection(factors):
            return True
        sides = zip(self._layouts(factors), (self.call.types, self.call.result_types), strict=True)
        pairs = (pair for layouts, types in sides for pair in zip(layouts, types, strict=True))
        return all(layout.is_even(type_.sizes, self.mesh.sizes) for layout, type_ in pairs)

    def _hidden(self) -> frozenset[str]:
        """Factors that stand in no dim but say where tensors are."""
        terms = self.signature.terms()
        shown = {factor for term in terms for dim in term.dims for factor in dim}
        return frozenset(factor for term in terms for factor, _ in term.overrides if factor not in shown)

    def _layouts(self, factors: Factors) -> tuple[tuple[Layout, ...], tuple[Layout, ...]]:
        per_axis = [self._way(factor) for factor in factors]
        operands = tuple(map(_layout, zip(*(way.operands for way in per_axis), strict=True)))
        return operands, tuple(map(_layout, zip(*(way.results for way in per_axis), strict=True)))

    def build(self, factors: Factors, at: Coordinates | None = None) -> Strategy:
        operands, results = self._layouts(factors)
        pieces = tuple([local_type(*pair, self.mesh, at) for pair in zip(self.call.types, operands, strict=True)])
        made = [
            Value(value.name, local_type(value.type, layout, self.mesh, at), value.grad)
            for value, layout in zip(self.call.op.results, results, strict=True)
        ]
        lowered = self.rule.lower(Split(self.call, factors, self.mesh, pieces, tuple(made)))
        return Strategy(factors, operands, results, lowered.op, lowered.forward, lowered.backward, at, pieces)

    def _ways(self, factor: str, factors: Factors) -> int:
        return prod([size for size, given in zip(self.mesh.sizes, factors, strict=True) if given == factor])
