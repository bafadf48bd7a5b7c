"""Random numbers by counter: every dim is free, because a rank's numbers follow from where its piece stands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from meshwright.rules.rule import LOWERINGS, Call, Lowering, Rule, Split
from meshwright.rules.shapes import named, opaque
from meshwright.rules.signature import Signature, Term
from meshwright.rules.table.factories import invariant


def dropout(call: Call) -> Signature:
    """Linear in its operand: the parts of a partial sum lose the same elements. The key is the same everywhere."""
    dims = Term(named(call.rank()))
    (key,), fixed = opaque(call.types[1:2])
    return Signature((dims, key), (dims,), fixed).linear(0)


def drawn(call: Call) -> Signature:
    """Numbers made from a key alone."""
    (key,), fixed = opaque(call.types[:1])
    return Signature((key,), (Term(named(len(call.result_types[0].shape))),), fixed)


def lower_at_place(name: str) -> Callable[[Split], Lowering]:
    """Tell the op the whole shape and, for every dim that is cut, over which axes."""

    def lower(split: Split) -> Lowering:
        shape = split.call.result_types[0].sizes
        named_axes = ((dim, split.axis(f"d{dim}")) for dim in range(len(shape)))
        cut = tuple((dim, axis, split.width(shape[dim], f"d{dim}")) for dim, axis in named_axes if axis)
        if not cut:
            return Lowering(split.local)
        op = split.local
        sizes = split.results[0].type.sizes
        args = op.args if name == "dropout" else (op.args[0], sizes, *op.args[2:])
        literals = (("shape", shape), ("cut", cut))
        return Lowering(replace(op, target=f"{LOWERINGS}:placed_{name}", args=args, kwargs=literals))

    return lower


RULES = {
    "meshwright.dropout": Rule(
        dropout, lower_at_place("dropout"), shown="..., x! -> ..., or + of the first", uneven=True
    ),
    "meshwright.uniform": Rule(drawn, lower_at_place("uniform"), shown="x! -> ...", uneven=True),
    "meshwright.normal": Rule(drawn, lower_at_place("normal"), shown="x! -> ...", uneven=True),
    "meshwright.capture.counter:keys": Rule(invariant, shown="-> x!"),
}
