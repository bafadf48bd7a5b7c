"""Scaled dot-product attention: batch and heads; with grouped queries, a head is a group and its queries.

Over a sharded sequence there are two ways: `s`, queries apart and keys and values whole (gathered by a conversion), and
`ring`, all three apart and keys and values passed from rank to rank.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from meshwright.layout.states import S
from meshwright.layout.steps import Collective
from meshwright.rules.rule import LOWERINGS, Call, Lowering, Rule, Split
from meshwright.rules.shapes import broadcast_dims, named
from meshwright.rules.signature import Dim, Signature, Term
from meshwright.rules.table.factories import invariant

RING = "ring"


def attention(call: Call) -> Signature:
    """Query heads are (groups, queries of a group), key heads are groups: sharding groups divides both alike.

    With one key head there is one group, and its queries shard while keys and values are whole. Over a sharded
    query sequence, keys and values are whole too: context parallelism by gathering.
    """
    query, key = call.types[0].sizes, call.types[1].sizes
    if len(query) < 3 or query[:-3] != key[:-3]:
        return invariant(call)
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
    signature = Signature(tuple(operands), (result,), frozenset({"q", "t", "d", "e"}))
    return _with_ring(signature, query[-2], len(query) - 2) if _may_ring(call) else signature


def _may_ring(call: Call) -> bool:
    """Queries and keys of one sequence, without a mask of its own that would have to travel too."""
    query, key = call.types[0].sizes, call.types[1].sizes
    return len(call.types) == 3 and query[-2] == key[-2] and query[-3] % key[-3] == 0


def _with_ring(signature: Signature, length: int, dim: int) -> Signature:
    """One factor more, which stands for the sequence of queries, keys and values alike."""
    apart = ((RING, S(dim)),)
    sides = (tuple(replace(term, overrides=apart) for term in side) for side in (signature.operands, signature.results))
    operands, results = sides
    return replace(signature, operands=operands, results=results, given=((RING, length),))


def lower_attention(split: Split) -> Lowering:
    """A causal mask depends on where this rank's queries stand in the whole sequence."""
    if split.axis(RING):
        return _lower_ring(split)
    axis, op = split.axis("s"), split.local
    if not axis or not split.call.arg(5, "is_causal", False):
        return Lowering(op)
    literals = (("scale", split.call.arg(6, "scale")), ("axis", axis))
    return Lowering(replace(op, target=f"{LOWERINGS}:causal_attention", args=op.args[:3], kwargs=literals))


def _lower_ring(split: Split) -> Lowering:
    """A block of keys and values is passed on once less than there are ranks; backward, its gradients all the way."""
    axis, size, op = split.axis(RING), split.ways(RING), split.local
    key, value = split.operands[1:3]
    elements = prod(key.sizes[:-1]) * (key.sizes[-1] + value.sizes[-1])
    passed = Collective("send", axis, elements * key.itemsize)
    returned = Collective("send", axis, elements * max(4, key.itemsize))
    causal = bool(split.call.arg(5, "is_causal", False))
    literals = (("scale", split.call.arg(6, "scale")), ("causal", causal), ("axis", axis), ("size", size))
    lowered = replace(op, target=f"{LOWERINGS}:ring_attention", args=op.args[:3], kwargs=literals)
    back = (passed, returned) * (size - 1) + (returned,)
    return Lowering(lowered, (passed,) * (size - 1), back)


def loose(call: Call) -> tuple[str, ...]:
    """Samples and heads; queries too where no mask depends on where they stand."""
    causal = call.arg(5, "is_causal", False)
    return (*(f"d{i}" for i in range(call.rank() - 3)), "h", *(() if causal else ("s",)))


_SHOWN = "... (h q) s d!, ... h t! d!, ... h t! e!, ... (h q) s t! -> ... (h q) s e!"
RULES = {
    "aten.scaled_dot_product_attention": Rule(
        attention,
        lower_attention,
        shown=f"{_SHOWN}; or ring",
        apart=frozenset({"s", RING}),
        uneven=loose,
        filled=True,  # query heads over key heads
    )
}
