"""The strategies of an op under the rule that serves it (`resolve`), and the proof of all of them."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

from meshwright.caches import CACHES
from meshwright.capture.program import Op, Value
from meshwright.cluster.mesh import Mesh
from meshwright.errors import RuleError
from meshwright.rules.prove import TOLERANCE, Case, Runner, prove_strategy
from meshwright.rules.resolve import resolve_rule
from meshwright.rules.rule import Call
from meshwright.rules.strategy import Coordinates, Factors, Narrow, Strategy, StrategyBuilder, parse_factors


def strategies(
    op: Op, values: Mapping[str, Value], mesh: Mesh, *, uneven: bool = False, narrow: Narrow | None = None
) -> tuple[Strategy, ...]:
    """Every way to run `op` on `mesh`; the first gives all axes to no factor. All sizes must be fixed.

    `uneven`: those too whose pieces differ in size from rank to rank. `narrow`: only those whose factors it
    leaves, axis by axis.
    """
    builder = _builder(Call.of(op, values), mesh)
    return tuple(builder.build(factors) for factors in builder.choices(uneven, narrow))


def strategy(
    op: Op, values: Mapping[str, Value], mesh: Mesh, factors: str | Factors, *, at: Coordinates | None = None
) -> Strategy:
    """The strategy of these factors, `"b,n"` or a tuple of one factor (or None) per axis.

    `at`: the rank whose local sizes are wanted; of those whose pieces differ, the first rank's unless given.
    """
    return _strategy(Call.of(op, values), mesh, parse_factors(factors) if isinstance(factors, str) else factors, at)


@CACHES.memoized(maxsize=8192)
def _strategy(call: Call, mesh: Mesh, wanted: Factors, at: Coordinates | None) -> Strategy:
    """Plans of one search have most of their ops in common."""
    builder = _builder(call, mesh)
    if not builder.has(wanted, True):
        text = ",".join(factor or "-" for factor in wanted)
        known = "; ".join(",".join(f or "-" for f in choice) for choice in builder.choices(True))
        raise RuleError(f"no strategy {text!r} for {call.op}", f"one of {known}", "change the factors or the mesh")
    return builder.build(wanted, at)


def prove(
    given: Case, mesh: Mesh, *, tolerance: float = TOLERANCE, run: Runner | None = None, uneven: bool = False
) -> int:
    """Prove every strategy of the op on this mesh; returns how many. RuleError names the first that is wrong.

    `uneven`: those too whose pieces differ from rank to rank.
    """
    found = strategies(given.op, given.values(), mesh, uneven=uneven)
    for one in found:
        each = _own_strategies(given, one, mesh)
        prove_strategy(given, one, mesh, tolerance=tolerance, run=run, each=each)
    return len(found)


def _own_strategies(given: Case, made: Strategy, mesh: Mesh) -> list[Strategy]:
    """Every rank's own: the same for all where pieces are even."""
    values = given.values()
    pairs = [*zip((values[name].type for name in given.op.operands()), made.operands, strict=True)]
    pairs += zip((value.type for value in given.op.results), made.results, strict=True)
    places = list(product(*map(range, mesh.sizes)))
    if all(layout.is_even(type_.sizes, mesh.sizes) for type_, layout in pairs):
        return [made] * len(places)
    return [strategy(given.op, values, mesh, made.factors, at=place) for place in places]


def _builder(call: Call, mesh: Mesh) -> StrategyBuilder:
    return StrategyBuilder.under(resolve_rule(call.op, call.types), call, mesh)
