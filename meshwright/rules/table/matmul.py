"""Matrix products. A bias under a contracted factor is `P`: the ranks' sum must hold it once."""

from __future__ import annotations

from collections import Counter

from meshwright.layout.states import P
from meshwright.rules.rule import Call, Rule
from meshwright.rules.shapes import broadcast_dims, named
from meshwright.rules.signature import Dim, Signature, Term
from meshwright.rules.table.factories import invariant


def matmul(call: Call) -> Signature:
    left, right = (type_.sizes for type_ in call.types)
    lead = call.result_types[0].sizes[: max(len(left), len(right)) - 2]
    if len(left) > 1 and len(right) > 1:
        rows = Term((*broadcast_dims(left[:-2], lead), ("m",), ("k",)))
        columns = Term((*broadcast_dims(right[:-2], lead), ("k",), ("n",)))
        return Signature((rows, columns), (Term((*named(len(lead)), ("m",), ("n",))),))
    text = {(True, True): "k, k ->", (False, True): "... k, k -> ...", (True, False): "k, ... k n -> ... n"}
    return Rule(text[len(left) == 1, len(right) == 1]).bind(call)


def addmm(call: Call) -> Signature:
    """`c + a @ b`, with or without a leading batch dim; `c` broadcasts."""
    batch: tuple[Dim, ...] = (("b",),) if call.rank(1) == 3 else ()
    result = (*batch, ("m",), ("n",))
    added = broadcast_dims(call.types[0].sizes, call.result_types[0].sizes, result)
    operands = (Term(added, (("k", P),)), Term((*batch, ("m",), ("k",))), Term((*batch, ("k",), ("n",))))
    return Signature(operands, (Term(result),))


def addmv(call: Call) -> Signature:
    """`c + a @ x`; `c` broadcasts."""
    added = broadcast_dims(call.types[0].sizes, call.result_types[0].sizes, (("m",),))
    return Signature((Term(added, (("k", P),)), Term((("m",), ("k",))), Term((("k",),))), (Term((("m",),)),))


def addbmm(call: Call) -> Signature:
    """`c` plus the sum of a batch of products."""
    result: tuple[Dim, ...] = (("m",), ("n",))
    added = broadcast_dims(call.types[0].sizes, call.result_types[0].sizes, result)
    products = Term((("b",), ("m",), ("k",))), Term((("b",), ("k",), ("n",)))
    return Signature((Term(added, (("b", P), ("k", P))), *products), (Term(result),))


def distances(call: Call) -> Signature:
    """`cdist`: every row of one with every row of the other."""
    left, right = (type_.sizes for type_ in call.types)
    lead = call.result_types[0].sizes[:-2]
    rows = Term((*broadcast_dims(left[:-2], lead), ("m",), ("k",)))
    columns = Term((*broadcast_dims(right[:-2], lead), ("n",), ("k",)))
    return Signature((rows, columns), (Term((*named(len(lead)), ("m",), ("n",))),), frozenset({"k"}))


def einsum(call: Call) -> Signature:
    """The letters are the factors; a dim of size one that meets a larger one broadcasts."""
    left, arrow, right = call.op.args[0].replace(" ", "").partition("->")
    inputs = left.split(",")
    if not arrow:
        counts = Counter(left.replace(",", "").replace("...", ""))
        right = ("..." if "..." in left else "") + "".join(sorted(x for x, count in counts.items() if count == 1))
    widest = max(len(t.shape) - len(term.replace("...", "")) for term, t in zip(inputs, call.types, strict=True))
    types = (*call.types, *call.result_types)
    named_dims = [_letters(term, len(t.shape), widest) for term, t in zip((*inputs, right), types, strict=True)]
    sizes: dict[str, int] = {}
    for names, type_ in zip(named_dims, types, strict=True):
        for name, size in zip(names, type_.sizes, strict=True):
            sizes[name] = max(size, sizes.get(name, 0))
    terms = tuple(
        Term(tuple((n,) if size == sizes[n] else () for n, size in zip(names, type_.sizes, strict=True)))
        for names, type_ in zip(named_dims, types, strict=True)
    )
    return Signature(terms[:-1], terms[-1:])


def _letters(term: str, rank: int, widest: int) -> list[str]:
    """One name per dim; the dims of `...` are counted from the right, as they broadcast."""
    before, dots, after = term.partition("...")
    hidden = rank - len(before) - len(after) if dots else 0
    return [*before, *(f"e{i}" for i in range(widest - hidden, widest)), *after]


def grouped(call: Call) -> Signature:
    """Rows sorted by group, each times its group's matrix; which rows a group has is data, so both stay whole."""
    if (call.rank(0), call.rank(1), len(call.types)) == (2, 3, 3):
        return Rule(_GROUPED).bind(call)
    return invariant(call)


_GROUPED = "r! k, g! k n, g! -> r! n"
RULES = {
    "aten.linear": Rule("... k, n k, n[k=P] -> ... n"),
    "aten.mm": Rule("m k, k n -> m n"),
    "aten.bmm": Rule("b m k, b k n -> b m n"),
    "aten.mv": Rule("m k, k -> m"),
    "aten.dot": Rule("k, k ->"),
    "aten.outer": Rule("m, n -> m n"),
    "aten.matmul": Rule(matmul, shown="... m k, ... k n -> ... m n"),
    "aten.addmm": Rule(addmm, shown="m n[k=P], m k, k n -> m n"),
    "aten.baddbmm": Rule(addmm, shown="b m n[k=P], b m k, b k n -> b m n"),
    "aten.addmv": Rule(addmv, shown="m[k=P], m k, k -> m", uneven=False),
    "aten.addbmm": Rule(addbmm, shown="m n[b=P k=P], b m k, b k n -> m n"),
    "aten.vdot": Rule("k, k ->"),
    "aten.ger": Rule("m, n -> m n"),
    "aten.cdist": Rule(distances, shown="... m k!, ... n k! -> ... m n", filled=True),  # work over rows
    "aten.bilinear": Rule("... j, ... k, n j k, n[j=P k=P] -> ... n", uneven=False),  # torch refuses empty pieces
    "aten._grouped_mm": Rule(grouped, shown=_GROUPED, uneven=False),
    "meshwright.grouped_mm": Rule(grouped, shown=_GROUPED, uneven=False),
    "transformers.grouped_mm_fallback": Rule(grouped, shown=_GROUPED, uneven=False),
    "aten.einsum": Rule(einsum, shown="the equation's letters -> its result's"),
}
