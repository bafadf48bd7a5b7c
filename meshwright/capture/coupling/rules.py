"""What ops of each kind do with samples: each rule enters its op's results, and says why if the op couples samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshwright.capture.coupling.parts import STATISTICS
from meshwright.capture.coupling.state import FIXED, LINE, ROWS, SUM, Kind, Samples, State, argument, packet
from meshwright.capture.program import Op, Ref
from meshwright.capture.sizes import BatchSize

Rule = Callable[[Samples, Op], str]

_VIEW_NAMES = """
    view _unsafe_view reshape flatten unflatten transpose permute t numpy_T unsqueeze squeeze expand contiguous clone
    alias detach to type_as lift_fresh_copy view_as reshape_as expand_as broadcast_to movedim repeat
    repeat_interleave pad constant_pad_nd view_as_real view_as_complex
"""
VIEWS = frozenset(_VIEW_NAMES.split())
PARTS = frozenset({"select", "slice", "narrow", "split", "split_with_sizes", "chunk", "unbind"})
PARTS_WRITTEN = frozenset({"slice_scatter", "select_scatter"})
PRODUCTS = frozenset({"linear", "mm", "bmm", "mv", "dot", "matmul", "addmm", "baddbmm", "einsum", "outer"})
SCATTERS = frozenset({"scatter", "scatter_add", "index_add", "index_copy", "index_put", "scatter_reduce"})
LOSSES = frozenset({"binary_cross_entropy", "binary_cross_entropy_with_logits", "kl_div", "nll_loss_nd"})


def rule(name: str) -> Rule:
    """By the operator's own name."""
    if name.endswith("_loss") or name in LOSSES:
        return loss
    return _RULES.get(name, other)


def row_by_row(seen: Samples, op: Op, reduced: State | None = None) -> str:
    """Rows in, rows out, all in one order; `reduced` is what results without a batch are."""
    states = [seen.states[name] for name in op.operands()]
    along = [state for state in states if state.kind in (Kind.ROWS, Kind.ORDER)]
    if len({state.order for state in along}) > 1:
        return "mixes samples in different orders"
    most = max(len(seen.batch_dims(name)) for name in op.operands() if seen.states[name] in along)
    if any(len(seen.batch_dims(value.name)) > most for value in op.results):
        return "sets every sample against every other"
    if reduced is None and not all(seen.batch_dims(value.name) for value in op.results):
        return "makes one value of several samples"
    order = along[0].order
    seen.enter_by_shape(op, reduced or FIXED, order)
    if all(state.kind is Kind.ORDER for state in along) and len(op.results) == 1 and seen.batch_dims(op.name):
        seen.enter(op, State(Kind.ORDER, order))
    return ""


def other(seen: Samples, op: Op) -> str:
    """Any other op works element by element, except along the dims that it names."""
    for operand in op.operands():
        if seen.states[operand].kind is Kind.ROWS and set(seen.dims(op, operand)) & set(seen.batch_dims(operand)):
            return "works along the batch"
    return row_by_row(seen, op)


def seen_otherwise(seen: Samples, op: Op) -> str:
    """The operand's rows, seen otherwise."""
    given = seen.states[op.operands()[0]]
    if len(seen.batch_dims(op.name)) > len(seen.batch_dims(op.operands()[0])):
        return "sets every sample against every other"
    if not seen.batch_dims(op.name):
        return "takes some of the samples"
    seen.enter(op, given)
    return ""


def part(seen: Samples, op: Op) -> str:
    dim = seen.dims(op, op.operands()[0], default=0)
    rows = seen.batch_dims(op.operands()[0])
    source = op.operands()[-1] if packet(op.target) in PARTS_WRITTEN else op.name
    if set(dim) & set(rows) and not (seen.batch_dims(source) and _whole(seen.types[source].shape[dim[0]])):
        return "takes some of the samples"
    return row_by_row(seen, op)


def product(seen: Samples, op: Op) -> str:
    """A contraction over the batch is a sum over samples, unless a batch remains."""
    rows = [operand for operand in op.operands() if seen.states[operand].kind is Kind.ROWS]
    if any(set(_contracted(seen, op, operand)) & set(seen.batch_dims(operand)) for operand in rows):
        if seen.batch_dims(op.name):
            return "mixes samples by a product over the batch"
        seen.enter(op, SUM)
        return ""
    return row_by_row(seen, op)


def _contracted(seen: Samples, op: Op, operand: str) -> tuple[int, ...]:
    name, rank, position = packet(op.target), len(seen.types[operand].shape), op.operands().index(operand)
    if name == "einsum":
        inputs, _, output = str(op.args[0]).replace(" ", "").partition("->")
        letters = inputs.split(",")[position].replace("...", "")
        return tuple(d - len(letters) + rank for d, letter in enumerate(letters) if letter not in output)
    if name in ("addmm", "baddbmm"):
        return () if position == 0 else (rank - 1,) if position == 1 else (rank - 2,)
    if name == "outer" or (name == "linear" and position > 1):
        return ()
    second = position == 1 and name != "linear" and rank > 1
    return (rank - 2,) if second else (rank - 1,)


def loss(seen: Samples, op: Op) -> str:
    first = op.operands()[0]
    classes = min(1, len(seen.types[first].shape) - 1)
    if packet(op.target) in ("cross_entropy_loss", "nll_loss_nd", "nll_loss") and classes in seen.batch_dims(first):
        return "sets every sample against every other"
    return row_by_row(seen, op, SUM)


def summed(seen: Samples, op: Op) -> str:
    return row_by_row(seen, op, SUM)


def counted(seen: Samples, op: Op) -> str:
    seen.enter(op, SUM)
    return ""


def first_dim_only(seen: Samples, op: Op) -> str:
    """Convolutions and norms whose first dim is the batch's; statistics of the batch itself are marked."""
    if packet(op.target) == "batch_norm" and op.args[5]:
        return STATISTICS
    if any(set(seen.batch_dims(n)) - {0} for n in op.operands() if seen.states[n].kind is Kind.ROWS):
        return "works along the batch"
    return row_by_row(seen, op)


def last_dims(seen: Samples, op: Op) -> str:
    """Norms over the last dims, and attention over the last two."""
    over = 2 if "attention" in op.target else len(op.args[1])
    first = op.operands()[0]
    if any(dim >= len(seen.types[first].shape) - over for dim in seen.batch_dims(first)):
        return "works along the batch"
    return row_by_row(seen, op)


def in_order(seen: Samples, op: Op) -> str:
    """A sort over the batch gives an order; sorting an order gives the one that undoes it."""
    operand = op.operands()[0]
    if not set(seen.dims(op, operand, default=-1)) & set(seen.batch_dims(operand)):
        return row_by_row(seen, op)
    given = seen.states[operand]
    order = _undone(given.order) if given.kind is Kind.ORDER else op.name
    seen.enter(op, State(Kind.ROWS, order))
    seen.states[op.results[-1].name] = State(Kind.ORDER, order)
    return ""


def indexed(seen: Samples, op: Op) -> str:
    table, indices = op.args[0].name, _indices(seen, op)
    given = seen.states[table]
    for dim in seen.batch_dims(table):
        if dim in indices and given.kind is not Kind.FIXED:
            return _reordered(seen, op, given, seen.states[indices[dim]])
    by_order = [seen.states[name] for name in indices.values() if seen.states[name].kind is Kind.ORDER]
    if by_order and given.kind in (Kind.FIXED, Kind.LINE):
        seen.enter(op, by_order[0])
        return ""
    return row_by_row(seen, op)


def _reordered(seen: Samples, op: Op, given: State, index: State) -> str:
    """Rows taken by an index over the batch: all in an order of their own, or back from it."""
    if index.kind is Kind.LINE:
        return row_by_row(seen, op)
    if index.kind is not Kind.ORDER or (given.order and _undone(given.order) != index.order):
        return "takes other samples' values"
    if given.kind is Kind.LINE:
        seen.enter(op, index)
    else:
        seen.enter(op, State(Kind.ROWS, "" if given.order else index.order))
    return ""


def scattered(seen: Samples, op: Op) -> str:
    target, indices = op.args[0].name, _indices(seen, op)
    source = seen.states[op.operands()[-1]]
    rows = seen.batch_dims(target)
    for dim in rows:
        index = seen.states[indices[dim]] if dim in indices else LINE
        if index.kind is Kind.ORDER and source.kind is Kind.ROWS and source.order == index.order:
            seen.enter(op, ROWS)
            return ""
        if index.kind is Kind.ORDER and source.kind in (Kind.LINE, Kind.FIXED):
            seen.enter(op, State(Kind.ORDER, _undone(index.order)))
            return ""
        if index.kind is not Kind.LINE:
            return "writes to other samples' rows"
    accumulates = "add" in packet(op.target) or (packet(op.target) == "index_put" and (*op.args, False)[3])
    if not rows and not accumulates:
        return "lets samples overwrite each other"
    return row_by_row(seen, op, SUM)


def _indices(seen: Samples, op: Op) -> dict[int, str]:
    """Which dims of the first operand are indexed, and by which values."""
    if isinstance(op.args[1], tuple):
        return {dim: index.name for dim, index in enumerate(op.args[1]) if isinstance(index, Ref)}
    rank = len(seen.types[op.args[0].name].shape)
    return {int(op.args[1]) % max(rank, 1): op.args[2].name}


def looked_up(seen: Samples, op: Op) -> str:
    table, index = op.operands()[:2]
    if seen.batch_dims(table) and seen.states[table].kind is Kind.ROWS:
        return "takes other samples' values"
    if argument(op, ("scale_grad_by_freq",)) and seen.batch_dims(index):
        return "scales gradients by how often an index is in the batch"
    seen.enter(op, seen.states[index])
    return ""


def _whole(size: Any) -> bool:
    """Whether a part of the batch is whole batches: one of two that were joined."""
    return isinstance(size, BatchSize) and size.coefficients[0] == 0


def _undone(order: str) -> str:
    return order.removeprefix("~") if order.startswith("~") else f"~{order}"


_RULES: dict[str, Rule] = {
    **dict.fromkeys(VIEWS, seen_otherwise),
    **dict.fromkeys(PARTS | PARTS_WRITTEN, part),
    **dict.fromkeys(PRODUCTS, product),
    **dict.fromkeys(SCATTERS, scattered),
    **dict.fromkeys(("sum", "mean", "nansum"), summed),
    **dict.fromkeys(("histc", "bincount"), counted),
    **dict.fromkeys(("sort", "argsort", "msort"), in_order),
    **dict.fromkeys(("index", "index_select", "gather"), indexed),
    **dict.fromkeys((f"conv{turned}{n}d" for n in (1, 2, 3) for turned in ("", "_transpose")), first_dim_only),
    **dict.fromkeys(("group_norm", "instance_norm", "batch_norm"), first_dim_only),
    **dict.fromkeys(("layer_norm", "rms_norm", "scaled_dot_product_attention"), last_dims),
    "embedding": looked_up,
}
