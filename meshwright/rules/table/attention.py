"""Scaled dot-product attention: batch and heads; with grouped queries, a head is a group and its queries."""

from __future__ import annotations

from dataclasses import replace

from meshwright.rules.rule import LOWERINGS, Call, Lowering, Rule, Split
from meshwright.rules.shapes import broadcast_dims, named, opaque
from meshwright.rules.signature import Dim, Signature, Term


def attention(call: Call) -> Signature:
    """Query heads are (groups, queries of a group), key heads are groups: sharding groups divides both alike.

    With one key head there is one group, and its queries shard while keys and values are whole. Over a sharded
    query sequence, keys and values are whole too: context parallelism by gathering.
    """
    query, key = call.types[0].sizes, call.types[1].sizes
    if len(query) < 3 or query[:-3] != key[:-3]:
        terms, fixed = opaque((*call.types, *call.result_types))
        return Signature(terms[:-1], terms[-1:], fixed)
    lead = named(len(query) - 3)
    grouped = key[-3] not in (1, query[-3])
    heads: Dim = ("h", "q") if grouped else ("h",)
    key_heads: Dim = ("h",) if key[-3] > 1 or query[-3] == 1 else ()
    operands = [
        Term((*lead, heads, ("s",), ("d",))),
        Term((*lead, key_heads, ("t",), ("d",))),
        Term((*lead, key_heads, ("t",), ("e",))),
    ]
    if len(call.types) > 3:
        scores = (*query[:-1], key[-2])
        operands.append(Term(broadcast_dims(call.types[3].sizes, scores, (*lead, heads, ("s",), ("t",)))))
    result = Term((*lead, heads, ("s",), ("e",)))
    return Signature(tuple(operands), (result,), frozenset({"q", "t", "d", "e"}))


def lower_attention(split: Split) -> Lowering:
    """A causal mask depends on where this rank's queries stand in the whole sequence."""
    axis, op = split.axis("s"), split.local
    if not axis or not split.call.arg(5, "is_causal", False):
        return Lowering(op)
    literals = (("scale", split.call.arg(6, "scale")), ("axis", axis))
    return Lowering(replace(op, target=f"{LOWERINGS}:causal_attention", args=op.args[:3], kwargs=literals))


def loose(call: Call) -> tuple[str, ...]:
    """Samples and heads; queries too where no mask depends on where they stand."""
    causal = call.arg(5, "is_causal", False)
    return (*(f"d{i}" for i in range(call.rank() - 3)), "h", *(() if causal else ("s",)))


_SHOWN = "... (h q) s d!, ... h t! d!, ... h t! e!, ... (h q) s t! -> ... (h q) s e!"
RULES = {"aten.scaled_dot_product_attention": Rule(attention, lower_attention, shown=_SHOWN, uneven=loose)}
