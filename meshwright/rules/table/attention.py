"""Scaled dot-product attention: batch and heads; with grouped queries, a head is a group and its queries."""

from __future__ import annotations

from meshwright.rules.rule import Call, Rule
from meshwright.rules.shapes import broadcast_dims, named
from meshwright.rules.signature import Dim, Signature, Term


def attention(call: Call) -> Signature:
    """Query heads are (groups, queries per group), key heads are groups: sharding groups divides both alike.

    With one key head there is one group, and the queries of it shard while keys and values are whole. The query
    sequence shards where no causal mask ties it to positions (a causal one needs a lowering that shifts it).
    """
    query, key = call.types[0].sizes, call.types[1].sizes
    if len(query) < 3 or query[: -3 if len(query) > 3 else 0] != key[: -3 if len(query) > 3 else 0]:
        return _batch_only(call)
    lead = named(len(query) - 3)
    grouped = key[-3] not in (1, query[-3])
    heads: Dim = ("h", "q") if grouped else ("h",)
    key_heads: Dim = ("h",) if key[-3] > 1 or query[-3] == 1 else ()
    result = (*lead, heads, ("s",), ("e",))
    operands = [
        Term((*lead, heads, ("s",), ("d",))),
        Term((*lead, key_heads, ("t",), ("d",))),
        Term((*lead, key_heads, ("t",), ("e",))),
    ]
    if len(call.types) > 3:
        scores = (*query[:-1], key[-2])
        operands.append(Term(broadcast_dims(call.types[3].sizes, scores, (*lead, heads, ("s",), ("t",)))))
    fixed = {"q", "t", "d", "e"} | ({"s"} if call.arg(5, "is_causal", False) else set())
    return Signature(tuple(operands), (Term(result),), frozenset(fixed))


def _batch_only(call: Call) -> Signature:
    """Two dims, or leading dims that broadcast: too rare to shard."""
    terms = [
        Term(tuple((f"x{t}_{i}",) for i in range(len(type_.shape))))
        for t, type_ in enumerate((*call.types, *call.result_types))
    ]
    return Signature(
        tuple(terms[:-1]), tuple(terms[-1:]), frozenset(f for term in terms for dim in term.dims for f in dim)
    )


RULES = {"aten.scaled_dot_product_attention": Rule(attention)}
