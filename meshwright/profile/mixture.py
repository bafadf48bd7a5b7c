"""A mixture of experts written out: the ops inside, with their types, so that counting can go op by op.

Over ranks, rows are counted as if every expert had the same number of picks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from meshwright.capture.experts import GROUPED
from meshwright.capture.program import Op, Ref, TensorType, Value, map_leaves
from meshwright.profile.kept import Saved
from meshwright.profile.operands import type_bytes

MIXTURES = frozenset({"mix", "exchanged_mix", "local_mix"})
INDEX_BYTES = 8


@dataclass(frozen=True, slots=True)
class Inner:
    """An op inside a mixture and its operands."""

    op: Op
    operands: tuple[Value, ...]


def row_count(op: Op, operands: Sequence[Value]) -> int:
    """Rows that this rank's experts work on; where tokens do not travel, only those of its own experts."""
    rows = prod(operands[1].type.sizes)
    return rows // dict(op.kwargs)["size"] if op.target.endswith(":local_mix") else rows


def grouped_flops(op: Op, operands: Sequence[Value]) -> dict[int, int]:
    """FLOPs of the grouped products, by the operand that is their weight."""
    rows = row_count(op, operands)
    found: dict[int, int] = {}
    for target, args, _, _ in dict(op.kwargs)["body"]:
        if target in GROUPED:
            place = 3 + int(args[1].removeprefix("$p"))
            found[place] = found.get(place, 0) + 2 * rows * prod(operands[place].type.sizes[1:])
    return found


def inner_ops(op: Op, operands: Sequence[Value]) -> Iterator[Inner]:
    """The body's ops. Row-wise ones have their first operand's shape; `chunk` and `split` cut its last dim."""
    rows, tokens = row_count(op, operands), operands[0]
    known = {f"$p{i}": replace(value, name=f"$p{i}") for i, value in enumerate(operands[3:])}
    known |= {"$rows": Value("$rows", TensorType((rows, *tokens.type.sizes[1:]), tokens.type.dtype), True)}
    known |= {"$ends": Value("$ends", TensorType(operands[3].type.sizes[:1], "int32"))}
    known |= {"$ids": Value("$ids", TensorType((rows,), "int64"))}
    count = 0
    for target, args, kwargs, results in dict(op.kwargs)["body"]:
        refs = map_leaves((args, kwargs), _as_ref)
        call = Op(target, refs[0], refs[1], ())
        read = tuple(known[name] for name in call.operands())
        type_ = _result(target, read, rows, results)
        made = [Value(f"$v{count + i}", type_, type_.is_float) for i in range(results)]
        known |= {value.name: value for value in made}
        count += results
        yield Inner(Op(target, refs[0], refs[1], tuple(made)), read)


def _as_ref(leaf: Any) -> Any:
    return Ref(leaf) if isinstance(leaf, str) and leaf.startswith("$") else leaf


def _result(target: str, operands: Sequence[Value], rows: int, results: int) -> TensorType:
    first = operands[0].type
    if target in GROUPED:
        return TensorType((rows, operands[1].type.sizes[-1]), first.dtype)
    if target == "aten.index.Tensor":
        return TensorType((rows, *first.sizes[1:]), first.dtype)
    if target == "aten.ge.Scalar":
        return TensorType(first.sizes, "bool")
    if target == "aten.unsqueeze.default":
        return TensorType((*first.sizes, 1), first.dtype)
    return TensorType((*first.sizes[:-1], first.sizes[-1] // results), first.dtype)


def mixture_saved(saved: Callable[[Op, Any], Saved]) -> Callable[[Op, Sequence[Value]], Saved]:
    """What the ops inside keep, each value once; the order of the picks; and the rows that are weighed."""

    def rule(op: Op, operands: Sequence[Value]) -> Saved:
        kept: dict[str, int] = {}
        auxiliary = 0
        for inner in inner_ops(op, operands):
            reads = saved(inner.op, inner.operands)
            auxiliary += reads.auxiliary_bytes
            values = [inner.operands[i] for i in reads.operands] + [inner.op.results[i] for i in reads.results]
            kept |= {v.name: type_bytes(v.type) for v in values if not v.name.startswith("$p")}
        tokens, chosen, weights = operands[:3]
        column = prod(chosen.type.sizes)
        back = column * op.results[0].type.sizes[1] * tokens.type.itemsize
        order = 3 * column * INDEX_BYTES
        params = tuple(range(3, len(operands)))
        return Saved(params, (), sum(kept.values()) + auxiliary + back + order + column * weights.type.itemsize)

    return rule
