"""Matrix products. A bias under a contracted factor is `P`: the ranks' sum must hold it once."""

from __future__ import annotations

from collections import Counter

from meshwright.errors import RuleError
from meshwright.layout.states import P
from meshwright.rules.rule import Call, Rule
from meshwright.rules.shapes import broadcast_dims, named
from meshwright.rules.signature import Dim, Signature, Term


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


def einsum(call: Call) -> Signature:
    equation = call.op.args[0].replace(" ", "")
    left, arrow, right = equation.partition("->")
    if "." in equation:
        raise RuleError(f"einsum {equation!r}", "named dims only", "write the dims of `...` out")
    if not arrow:
        counts = Counter(left.replace(",", ""))
        right = "".join(sorted(letter for letter, count in counts.items() if count == 1))
    sizes = {
        letter: max(size, 1)
        for term, type_ in zip(left.split(","), call.types, strict=True)
        for letter, size in zip(term, type_.sizes, strict=True)
        if size != 1
    }
    terms = tuple(
        Term(
            tuple(
                (letter,) if size == sizes.get(letter, 1) else ()
                for letter, size in zip(term, type_.sizes, strict=True)
            )
        )
        for term, type_ in zip((*left.split(","), right), (*call.types, *call.result_types), strict=True)
    )
    return Signature(terms[:-1], terms[-1:])


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
    "aten.einsum": Rule(einsum, shown="the equation's letters -> its result's"),
}
