"""Mixtures of experts: tokens are free; experts on different ranks take tokens by all-to-all, or every rank's share."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from meshwright.capture.experts import MIX
from meshwright.layout.states import S
from meshwright.layout.steps import Collective
from meshwright.rules.rule import LOWERINGS, Call, Lowering, Rule, Split
from meshwright.rules.signature import Signature, Term

EXCHANGE = "x"
COUNT_BYTES = 8


def mixture(call: Call) -> Signature:
    """`t`: tokens apart. `e`: experts apart, all tokens everywhere. `x`: both, and tokens travel to their experts."""
    apart = ((EXCHANGE, S(0)),)
    tokens, picks = Term((("t",), ("h",)), apart), Term((("t",), ("k",)), apart)
    params = []
    fixed = {"h", "k"}
    for index, type_ in enumerate(call.types[3:]):
        rest = tuple((f"p{index}_{dim}",) for dim in range(1, len(type_.shape)))
        fixed |= {name for dim in rest for name in dim}
        params.append(Term((("e",), *rest), apart))
    given = ((EXCHANGE, dict(call.op.kwargs)["experts"]),)
    return Signature((tokens, picks, picks, *params), (tokens,), frozenset(fixed), given=given)


def lower_mixture(split: Split) -> Lowering:
    axis, share = split.axis(EXCHANGE), split.axis("e")
    op, experts = split.local, dict(split.call.op.kwargs)["experts"]
    if not axis and not share:
        return Lowering(op)
    size = split.ways(EXCHANGE, "e")
    literals = (("body", dict(op.kwargs)["body"]), ("experts_", experts), ("axis", axis or share), ("size", size))
    if share:
        return Lowering(replace(op, target=f"{LOWERINGS}:local_mix", kwargs=literals))
    tokens, chosen = split.operands[:2]
    row_bytes = prod(chosen.sizes) * tokens.itemsize
    there = Collective("all_to_all", axis, row_bytes * tokens.sizes[1])
    back = Collective("all_to_all", axis, row_bytes * split.results[0].type.sizes[1])
    counts = Collective("all_gather", axis, experts * size * COUNT_BYTES)
    lowered = replace(op, target=f"{LOWERINGS}:exchanged_mix", kwargs=literals)
    return Lowering(lowered, (counts, there, back), (back, there))


_SHOWN = "t h!, t k!, t k!, e m! n!, ... -> t h!; or x: t and e together"
RULES = {MIX: Rule(mixture, lower_mixture, shown=_SHOWN, apart=frozenset({"e", EXCHANGE}))}
