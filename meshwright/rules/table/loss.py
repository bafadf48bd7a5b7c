"""Cross-entropy and its last step alone: over sharded rows the loss is partial; over sharded classes (of the first) no
logits are gathered."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from meshwright.layout.states import I
from meshwright.layout.steps import Collective
from meshwright.rules.rule import LOWERINGS, Call, Lowering, Rule, Split
from meshwright.rules.signature import Dim, Signature, Term
from meshwright.rules.table.reductions import MEAN, NONE

COUNT_BYTES = 8


def _rows(call: Call) -> tuple[str, ...]:
    return tuple(f"r{i}" for i in range(call.rank() - 1))


def cross_entropy(call: Call) -> Signature:
    """Logits [rows, classes, more rows] or [classes]; targets without the classes, or with them (probabilities)."""
    at = min(1, call.rank() - 1)
    rows: tuple[Dim, ...] = tuple((factor,) for factor in _rows(call))
    logits = Term((*rows[:at], ("c",), *rows[at:]))
    targets = logits if _is_soft(call) else Term(rows)
    weights = tuple(Term((("c",),)) for _ in call.types[2:])
    result = Term(rows if call.arg(3, "reduction", MEAN) == NONE else (), (("c", I),))
    return Signature((logits, targets, *weights), (result,), frozenset() if _is_plain(call) else frozenset({"c"}))


def lower_cross_entropy(split: Split) -> Lowering:
    """Sums need nothing of other ranks' rows; means need the whole count; sharded classes are merged row by row."""
    call, op = split.call, split.local
    rows, classes = split.axis(*_rows(call)), split.axis("c")
    reduction, ignored = call.arg(3, "reduction", MEAN), ("ignore_index", call.arg(4, "ignore_index", -100))
    rows = rows if reduction == MEAN else ""
    if classes:
        width = split.width(call.types[0].sizes[min(1, call.rank() - 1)], "c")
        vocabulary = (("reduction", reduction), ignored, ("rows", rows), ("classes", classes), ("width", width))
        lowered = replace(op, target=f"{LOWERINGS}:vocab_cross_entropy", args=op.args[:2], kwargs=vocabulary)
        return Lowering(lowered, _class_collectives(split, classes) + _count(split, rows))
    if not rows:
        return Lowering(op)
    parts = split.ways(*_rows(call))
    smoothing = ("label_smoothing", call.arg(5, "label_smoothing", 0.0))
    literals = (ignored, smoothing, ("rows", rows), ("parts", parts))
    tensors = (*op.args[:2], call.arg(2, "weight"))
    return Lowering(
        replace(op, target=f"{LOWERINGS}:cross_entropy", args=tensors, kwargs=literals), _count(split, rows)
    )


def nll_loss(call: Call) -> Signature:
    """Logarithms of probabilities and class indices; the classes stay whole."""
    logits, rows, *weights = cross_entropy(call).operands
    result = rows if call.arg(3, "reduction", MEAN) == NONE else Term(())
    return Signature((logits, rows, *weights), (result,), frozenset({"c"}))


def lower_nll_loss(split: Split) -> Lowering:
    call, op = split.call, split.local
    rows = split.axis(*_rows(call))
    if not rows or call.arg(3, "reduction", MEAN) != MEAN:
        return Lowering(op)
    literals = (("ignore_index", call.arg(4, "ignore_index", -100)), ("rows", rows))
    tensors = (*op.args[:2], call.arg(2, "weight"))
    return Lowering(replace(op, target=f"{LOWERINGS}:nll_loss", args=tensors, kwargs=literals), _count(split, rows))


def _class_collectives(split: Split, axis: str) -> tuple[Collective, ...]:
    """Each row's largest logit, then its sum of exponentials and its target's logit together."""
    logits, targets = split.operands
    local_rows = prod(targets.sizes)
    wide = 8 if logits.dtype == "float64" else 4
    return (
        Collective("all_reduce", axis, local_rows * logits.itemsize),
        Collective("all_reduce", axis, 2 * local_rows * wide),
    )


def _count(split: Split, axis: str) -> tuple[Collective, ...]:
    """The number of rows that count, or the sum of their weights; probabilities count every row."""
    if not axis or _is_soft(split.call):
        return ()
    weights = split.operands[2:]
    return (Collective("all_reduce", axis, weights[0].itemsize if weights else COUNT_BYTES),)


def loose(call: Call) -> tuple[str, ...]:
    """Classes where they can be sharded; rows, unless their number is taken to be the same on every rank."""
    rows = _rows(call)
    return ("c", *(() if _is_soft(call) and call.arg(3, "reduction", MEAN) == MEAN else rows))


def _is_soft(call: Call) -> bool:
    return call.types[1].is_float


def ctc(call: Call) -> Signature:
    """Samples apart; steps, classes and targets of each are whole."""
    steps, sample, classes, width = ("t",), ("n",), ("c",), ("s",)
    operands = Term((steps, sample, classes)), Term((sample, width)), Term((sample,)), Term((sample,))
    return Signature(operands, (Term((sample,)), Term((sample, steps, ("w",)))), frozenset({"t", "c", "s", "w"}))


def _is_plain(call: Call) -> bool:
    """Class indices, no weights, no smoothing: the form that can be computed with the classes sharded."""
    return not _is_soft(call) and len(call.types) == 2 and not call.arg(5, "label_smoothing", 0.0)


RULES = {
    **{
        f"aten.{name}": Rule(nll_loss, lower_nll_loss, shown="r c! ..., r ... ->", uneven=loose)
        for name in ("nll_loss_nd", "nll_loss", "nll_loss2d")
    },
    "aten.cross_entropy_loss": Rule(cross_entropy, lower_cross_entropy, shown="r c ..., r ... -> [c=I]", uneven=loose),
    "meshwright.ctc": Rule(ctc, shown="t! n c!, n s!, n, n -> n, n t! w!"),
}
