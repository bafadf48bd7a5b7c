"""Ops that couple samples: those whose result would be another one if the batch were run in parts.

A step may run its batch in parts where the loss is a sum or mean over samples of what each sample gives by itself.
The batch is a named size, so its dim in every value is known; each value has one of a few *kinds*, and an op is
marked where its operands' kinds do not allow what it does:

    FIXED  nothing of the samples: parameters, constants, shapes
    LINE   the samples' own numbers, in order (`arange` over the batch)
    ROWS   along the batch, every entry follows from one sample
    ORDER  a permutation of rows (a sort over the batch), as experts are dispatched by
    SUM    a sum over samples, of which only linear use may be made
    PAIRS  samples against samples, after the op that was marked for it

Results of a marked op count as ROWS or FIXED again, so that each mark is one cause and not all that follows.
A loss's own mean (`cross_entropy` over the targets that count) is taken to be a mean over samples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import Any

from meshwright.capture.program import Op, Ref, TensorType
from meshwright.capture.read import BATCH_NORM, Flat
from meshwright.capture.sizes import BatchSize
from meshwright.capture.targets import resolve
from meshwright.torch_compat import argument_names


class Kind(Enum):
    FIXED = auto()
    LINE = auto()
    ROWS = auto()
    ORDER = auto()
    SUM = auto()
    PAIRS = auto()


@dataclass(frozen=True, slots=True)
class State:
    """order: the permutation that ROWS lie in, or that an ORDER is; `~name` undoes `name`."""

    kind: Kind
    order: str = ""


FIXED, LINE, ROWS, SUM, PAIRS = (State(kind) for kind in (Kind.FIXED, Kind.LINE, Kind.ROWS, Kind.SUM, Kind.PAIRS))

_VIEW_NAMES = """
    view _unsafe_view reshape flatten unflatten transpose permute t numpy_T unsqueeze squeeze expand contiguous clone
    alias detach to type_as lift_fresh_copy view_as reshape_as expand_as broadcast_to movedim repeat
    repeat_interleave pad constant_pad_nd view_as_real view_as_complex
"""
_VIEWS = frozenset(_VIEW_NAMES.split())
_PARTS = frozenset({"select", "slice", "narrow", "split", "split_with_sizes", "chunk", "unbind"})
_PARTS_WRITTEN = frozenset({"slice_scatter", "select_scatter"})
_LINEAR = _VIEWS | _PARTS | {"add", "sub", "rsub", "neg", "sum", "mean", "cumsum", "cat", "stack"}
_PRODUCTS = frozenset({"linear", "mm", "bmm", "mv", "dot", "matmul", "addmm", "baddbmm", "einsum", "outer"})
_GROUPED = frozenset({"grouped_mm", "_grouped_mm", "grouped_mm_fallback"})
_SCATTERS = frozenset({"scatter", "scatter_add", "index_add", "index_copy", "index_put", "scatter_reduce"})
_LOSSES = frozenset({"binary_cross_entropy", "binary_cross_entropy_with_logits", "kl_div", "nll_loss_nd"})
_DIMS = ("dim", "dims", "dimension", "axis")


def couplings(flat: Flat) -> dict[str, str]:
    """For each op that couples samples, by name: what it does."""
    reader = _Reader(flat)
    found = {op.name: why for op in flat.ops if (why := reader.step(op))}
    makers = {value.name: op.name for op in flat.ops for value in op.results}
    for buffer, value in flat.updates:
        if reader.states[value].kind is not Kind.FIXED and makers.get(value, "") not in found:
            found[makers[value]] = f"{buffer} takes what follows from the samples of a batch"
    return found


class _Reader:
    """states: of every value so far. `step` enters an op's results, and says why if the op couples samples."""

    def __init__(self, flat: Flat) -> None:
        self.types: dict[str, TensorType] = {value.name: value.type for value in flat.inputs}
        self.types |= {entry.name: entry.type for entry in (*flat.parameters, *flat.buffers)}
        self.states = dict.fromkeys(self.types, FIXED)
        self.states |= {value.name: ROWS for value in flat.inputs if self.batch_dims(value.name)}

    def step(self, op: Op) -> str:
        self.types |= {value.name: value.type for value in op.results}
        name = packet(op.target)
        kinds = {self.states[operand].kind for operand in op.operands()}
        if op.target == BATCH_NORM:
            return self._marked(op, "takes its statistics over the batch")
        if kinds <= {Kind.FIXED, Kind.LINE} or name.endswith("_like") or name.startswith("new_"):
            line = name == "arange" or (name in _VIEWS and Kind.LINE in kinds)
            self._enter(op, LINE if line and self.batch_dims(op.name) else FIXED)
            return ""
        if Kind.PAIRS in kinds:
            self._enter_by_shape(op, FIXED)
            return ""
        if name in _GROUPED:
            self._enter(op, self.states[op.operands()[0]])
            return ""
        if Kind.SUM in kinds:
            return self._with_sum(op, name)
        why = self._rule(name)(op)
        return self._marked(op, why) if why else ""

    def batch_dims(self, name: str) -> tuple[int, ...]:
        shape = self.types[name].shape
        return tuple(dim for dim, size in enumerate(shape) if isinstance(size, BatchSize))

    def _rule(self, name: str) -> Callable[[Op], str]:
        if name in _VIEWS:
            return self._same
        if name in _PARTS | _PARTS_WRITTEN:
            return self._part
        if name in _PRODUCTS:
            return self._product
        if name in _SCATTERS:
            return self._scattered
        if name.endswith("_loss") or name in _LOSSES:
            return self._loss
        return partial(_RULES.get(name, _Reader._other), self)

    def _enter(self, op: Op, state: State) -> None:
        self.states |= {value.name: state for value in op.results}

    def _enter_by_shape(self, op: Op, reduced: State, order: str = "") -> None:
        for value in op.results:
            dims = len(self.batch_dims(value.name))
            rows = State(Kind.ROWS, order) if dims == 1 else PAIRS
            self.states[value.name] = rows if dims else reduced

    def _marked(self, op: Op, why: str) -> str:
        self._enter_by_shape(op, FIXED)
        return why

    def _with_sum(self, op: Op, name: str) -> str:
        """A sum over samples may be added to others, scaled and looked at in parts."""
        states = [self.states[operand] for operand in op.operands()]
        sums = [index for index, state in enumerate(states) if state.kind is Kind.SUM]
        alone = all(state.kind in (Kind.SUM, Kind.FIXED, Kind.LINE) for state in states)
        scaled = len(sums) == 1 and (name in _PRODUCTS or name == "mul" or (name == "div" and sums == [0]))
        if alone and (name in _LINEAR or scaled):
            self._enter(op, SUM)
            return ""
        return self._marked(op, "makes more than a sum of what is summed over samples")

    def _same(self, op: Op) -> str:
        """The operand's rows, seen otherwise."""
        given = self.states[op.operands()[0]]
        if len(self.batch_dims(op.name)) > len(self.batch_dims(op.operands()[0])):
            return "sets every sample against every other"
        if not self.batch_dims(op.name):
            return "takes some of the samples"
        self._enter(op, given)
        return ""

    def _part(self, op: Op) -> str:
        dim = self._dims(op, op.operands()[0], default=0)
        rows = self.batch_dims(op.operands()[0])
        source = op.operands()[-1] if packet(op.target) in _PARTS_WRITTEN else op.name
        if set(dim) & set(rows) and not (self.batch_dims(source) and _whole(self.types[source].shape[dim[0]])):
            return "takes some of the samples"
        return self._rows(op)

    def _product(self, op: Op) -> str:
        """A contraction over the batch is a sum over samples, unless a batch remains."""
        rows = [operand for operand in op.operands() if self.states[operand].kind is Kind.ROWS]
        if any(set(self._contracted(op, operand)) & set(self.batch_dims(operand)) for operand in rows):
            if self.batch_dims(op.name):
                return "mixes samples by a product over the batch"
            self._enter(op, SUM)
            return ""
        return self._rows(op)

    def _contracted(self, op: Op, operand: str) -> tuple[int, ...]:
        name, rank, position = packet(op.target), len(self.types[operand].shape), op.operands().index(operand)
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

    def _loss(self, op: Op) -> str:
        first = op.operands()[0]
        classes = min(1, len(self.types[first].shape) - 1)
        if packet(op.target) in ("cross_entropy_loss", "nll_loss_nd", "nll_loss") and classes in self.batch_dims(first):
            return "sets every sample against every other"
        return self._rows(op, SUM)

    def _summed(self, op: Op) -> str:
        return self._rows(op, SUM)

    def _counted(self, op: Op) -> str:
        self._enter(op, SUM)
        return ""

    def _first_dim_only(self, op: Op) -> str:
        """Convolutions and norms whose first dim is the batch's; statistics of the batch itself are marked."""
        if packet(op.target) == "batch_norm" and op.args[5]:
            return "takes its statistics over the batch"
        if any(set(self.batch_dims(n)) - {0} for n in op.operands() if self.states[n].kind is Kind.ROWS):
            return "works along the batch"
        return self._rows(op)

    def _last_dims(self, op: Op) -> str:
        """Norms over the last dims, and attention over the last two."""
        over = 2 if "attention" in op.target else len(op.args[1])
        first = op.operands()[0]
        if any(dim >= len(self.types[first].shape) - over for dim in self.batch_dims(first)):
            return "works along the batch"
        return self._rows(op)

    def _sorted(self, op: Op) -> str:
        """A sort over the batch gives an order; sorting an order gives the one that undoes it."""
        operand = op.operands()[0]
        if not set(self._dims(op, operand, default=-1)) & set(self.batch_dims(operand)):
            return self._rows(op)
        given = self.states[operand]
        order = _undone(given.order) if given.kind is Kind.ORDER else op.name
        self._enter(op, State(Kind.ROWS, order))
        self.states[op.results[-1].name] = State(Kind.ORDER, order)
        return ""

    def _indexed(self, op: Op) -> str:
        table, indices = op.args[0].name, self._indices(op)
        given = self.states[table]
        for dim in self.batch_dims(table):
            if dim in indices and given.kind is not Kind.FIXED:
                return self._reordered(op, given, self.states[indices[dim]])
        by_order = [self.states[name] for name in indices.values() if self.states[name].kind is Kind.ORDER]
        if by_order and given.kind in (Kind.FIXED, Kind.LINE):
            self._enter(op, by_order[0])
            return ""
        return self._rows(op)

    def _reordered(self, op: Op, given: State, index: State) -> str:
        """Rows taken by an index over the batch: all in an order of their own, or back from it."""
        if index.kind is Kind.LINE:
            return self._rows(op)
        if index.kind is not Kind.ORDER or (given.order and _undone(given.order) != index.order):
            return "takes other samples' values"
        if given.kind is Kind.LINE:
            self._enter(op, index)
        else:
            self._enter(op, State(Kind.ROWS, "" if given.order else index.order))
        return ""

    def _scattered(self, op: Op) -> str:
        target, indices = op.args[0].name, self._indices(op)
        source = self.states[op.operands()[-1]]
        rows = self.batch_dims(target)
        for dim in rows:
            index = self.states[indices[dim]] if dim in indices else LINE
            if index.kind is Kind.ORDER and source.kind is Kind.ROWS and source.order == index.order:
                self._enter(op, ROWS)
                return ""
            if index.kind is Kind.ORDER and source.kind in (Kind.LINE, Kind.FIXED):
                self._enter(op, State(Kind.ORDER, _undone(index.order)))
                return ""
            if index.kind is not Kind.LINE:
                return "writes to other samples' rows"
        accumulates = "add" in packet(op.target) or (packet(op.target) == "index_put" and (*op.args, False)[3])
        if not rows and not accumulates:
            return "lets samples overwrite each other"
        return self._rows(op, SUM)

    def _indices(self, op: Op) -> dict[int, str]:
        """Which dims of the first operand are indexed, and by which values."""
        if isinstance(op.args[1], tuple):
            return {dim: index.name for dim, index in enumerate(op.args[1]) if isinstance(index, Ref)}
        rank = len(self.types[op.args[0].name].shape)
        return {int(op.args[1]) % max(rank, 1): op.args[2].name}

    def _looked_up(self, op: Op) -> str:
        table, index = op.operands()[:2]
        if self.batch_dims(table) and self.states[table].kind is Kind.ROWS:
            return "takes other samples' values"
        self._enter(op, self.states[index])
        return ""

    def _other(self, op: Op) -> str:
        """Any other op works element by element, except along the dims that it names."""
        for operand in op.operands():
            if self.states[operand].kind is Kind.ROWS and set(self._dims(op, operand)) & set(self.batch_dims(operand)):
                return "works along the batch"
        return self._rows(op)

    def _rows(self, op: Op, reduced: State | None = None) -> str:
        """Rows in, rows out, all in one order; `reduced` is what results without a batch are."""
        states = [self.states[name] for name in op.operands()]
        along = [state for state in states if state.kind in (Kind.ROWS, Kind.ORDER)]
        if len({state.order for state in along}) > 1:
            return "mixes samples in different orders"
        most = max(len(self.batch_dims(name)) for name in op.operands() if self.states[name] in along)
        if any(len(self.batch_dims(value.name)) > most for value in op.results):
            return "sets every sample against every other"
        if reduced is None and not all(self.batch_dims(value.name) for value in op.results):
            return "makes one value of several samples"
        order = along[0].order
        self._enter_by_shape(op, reduced or FIXED, order)
        if all(state.kind is Kind.ORDER for state in along) and len(op.results) == 1 and self.batch_dims(op.name):
            self._enter(op, State(Kind.ORDER, order))
        return ""

    def _dims(self, op: Op, operand: str, default: int | None = None) -> tuple[int, ...]:
        """The dims that an op's arguments name, counted from the front of this operand."""
        found = _argument(op, _DIMS)
        found = default if found is None else found
        rank = max(len(self.types[operand].shape), 1)
        listed = found if isinstance(found, tuple) else () if found is None else (found,)
        return tuple(int(dim) % rank for dim in listed)


_RULES: dict[str, Callable[[_Reader, Op], str]] = {
    **dict.fromkeys(("sum", "mean", "nansum"), _Reader._summed),
    **dict.fromkeys(("histc", "bincount"), _Reader._counted),
    **dict.fromkeys(("sort", "argsort", "msort"), _Reader._sorted),
    **dict.fromkeys(("index", "index_select", "gather"), _Reader._indexed),
    **dict.fromkeys((f"conv{turned}{n}d" for n in (1, 2, 3) for turned in ("", "_transpose")), _Reader._first_dim_only),
    **dict.fromkeys(("group_norm", "instance_norm", "batch_norm"), _Reader._first_dim_only),
    **dict.fromkeys(("layer_norm", "rms_norm", "scaled_dot_product_attention"), _Reader._last_dims),
    "embedding": _Reader._looked_up,
}


def packet(target: str) -> str:
    """`aten.add.Tensor` -> `add`; a function's own name."""
    return target.rpartition(":")[2] if ":" in target else target.split(".")[1]


def _argument(op: Op, names: Sequence[str]) -> Any:
    """An argument by one of these names, wherever the operator takes it."""
    given = dict(op.kwargs)
    known = () if ":" in op.target else argument_names(resolve(op.target))
    for name in names:
        if name in given:
            return given[name]
        if name in known and known.index(name) < len(op.args):
            return op.args[known.index(name)]
    return None


def _whole(size: Any) -> bool:
    """Whether a part of the batch is whole batches: one of two that were joined."""
    return isinstance(size, BatchSize) and size.coefficients[0] == 0


def _undone(order: str) -> str:
    return order.removeprefix("~") if order.startswith("~") else f"~{order}"
