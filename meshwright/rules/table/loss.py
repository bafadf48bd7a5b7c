"""Cross-entropy: over sharded rows the loss is partial; over sharded classes no logits are gathered."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from meshwright.layout.states import I
from meshwright.layout.steps import Collective
from meshwright.rules.rule import Call, Lowering, Rule, Split
from meshwright.rules.shapes import opaque
from meshwright.rules.signature import Dim, Signature, Term
from meshwright.rules.table.reductions import LOWERINGS, MEAN

COUNT_BYTES = 8


def cross_entropy(call: Call) -> Signature:
    """Logits [rows, classes, more rows] or [classes], targets without the classes."""
    if not _is_plain(call):
        terms, fixed = opaque((*call.types, *call.result_types))
        return Signature(terms[:-1], terms[-1:], fixed)
    rows = _rows(call)
    at = 0 if call.rank() == 1 else 1
    reduced = call.arg(3, "reduction", MEAN) != 0
    result = Term(() if reduced else rows, (("c", I),))
    return Signature((Term((*rows[:at], ("c",), *rows[at:])), Term(rows)), (result,))


def lower_cross_entropy(split: Split) -> Lowering:
    call, op = split.call, split.local
    rows, classes = split.axis(*_row_factors(call)), split.axis("c")
    mean = call.arg(3, "reduction", MEAN) == MEAN
    counted = bool(rows) and mean
    if not classes and not counted:
        return Lowering(op)
    literals = (
        ("reduction", call.arg(3, "reduction", MEAN)),
        ("ignore_index", call.arg(4, "ignore_index", -100)),
        ("rows", rows if counted else ""),
        ("classes", classes),
    )
    lowered = replace(op, target=f"{LOWERINGS}:cross_entropy", args=op.args[:2], kwargs=literals)
    return Lowering(lowered, _class_collectives(split, classes) + _count(rows if counted else ""))


def _class_collectives(split: Split, axis: str) -> tuple[Collective, ...]:
    """Each row's largest logit, then its sum of exponentials and its target's logit together."""
    if not axis:
        return ()
    logits, targets = split.operands
    local_rows = prod(targets.sizes)
    wide = 8 if logits.dtype == "float64" else 4
    return (
        Collective("all_reduce", axis, local_rows * logits.itemsize),
        Collective("all_reduce", axis, 2 * local_rows * wide),
    )


def _count(axis: str) -> tuple[Collective, ...]:
    return (Collective("all_reduce", axis, COUNT_BYTES),) if axis else ()


def _is_plain(call: Call) -> bool:
    """Class indices, no weights, no smoothing: what language models and classifiers use."""
    plain = len(call.types) == 2 and call.types[1].dtype == "int64"
    return plain and call.arg(2, "weight") is None and not call.arg(5, "label_smoothing", 0.0)


def _rows(call: Call) -> tuple[Dim, ...]:
    return tuple((f"r{i}",) for i in range(call.rank(1)))


def _row_factors(call: Call) -> tuple[str, ...]:
    return tuple(f for dim in _rows(call) for f in dim)


RULES = {"aten.cross_entropy_loss": Rule(cross_entropy, lower_cross_entropy, shown="r c ..., r ... -> [c=I]")}
