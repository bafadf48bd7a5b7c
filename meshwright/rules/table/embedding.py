"""Embedding: the hidden dim is free; over a sharded vocabulary each rank looks up the rows it holds."""

from __future__ import annotations

from dataclasses import replace

from meshwright.rules.rule import LOWERINGS, Call, Lowering, Rule, Split
from meshwright.rules.shapes import named
from meshwright.rules.signature import Signature, Term


def embedding(call: Call) -> Signature:
    dims = named(call.rank(1))
    counts_rows = call.arg(3, "scale_grad_by_freq", False)
    # A gradient scaled by how often a row is used needs all indices in one place.
    fixed = frozenset({"v", *(f for dim in dims for f in dim)} if counts_rows else ())
    return Signature((Term((("v",), ("n",))), Term(dims)), (Term((*dims, ("n",))),), fixed)


def lower_embedding(split: Split) -> Lowering:
    axis, op = split.axis("v"), split.local
    if not axis:
        return Lowering(op)
    padding = split.call.arg(2, "padding_idx", -1)
    width = split.width(split.call.types[0].sizes[0], "v")
    literals = (("padding_idx", padding), ("axis", axis), ("width", width))
    target = f"{LOWERINGS}:vocab_embedding"
    return Lowering(replace(op, target=target, args=op.args[:2], kwargs=literals))


RULES = {"aten.embedding": Rule(embedding, lower_embedding, shown="v n, ... -> ... n", uneven=True)}
