"""Mixtures of experts as one op: tokens go to their experts' rows and come back mixed.

Models write this out: sort the picks, gather tokens in that order, multiply group by group, weigh, undo the order,
sum over the picks. Op by op nothing of it can be sharded, because a sort couples all tokens; as a whole every token
is on its own, and experts can live on different ranks. `fuse` finds such stretches and puts `mix` in their place.

The experts' own work (between gather and weighing) is kept as a *body*: a tuple of calls (target, arguments, keyword
arguments, number of results) whose arguments name `$rows`, `$ends` (where each expert's rows end), `$ids` (each row's
expert), `$p0`, `$p1`, ... (parameters) and `$v0`, `$v1`, ... (results, in order).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from meshwright.capture.program import Op, Ref, Value, map_leaves
from meshwright.capture.sizes import Size

MIX = "meshwright.capture.experts:mix"
Body = tuple[tuple[str, tuple[Any, ...], tuple[tuple[str, Any], ...], int], ...]

_ROWWISE = """
    silu gelu relu sigmoid tanh mul.Tensor add.Tensor sub.Tensor div.Tensor neg pow.Tensor_Scalar square clamp exp
    chunk split.Tensor to.dtype clone contiguous
"""
ROWWISE = frozenset(f"aten.{name}" if "." in name else f"aten.{name}.default" for name in _ROWWISE.split())
"""Ops that treat every row by itself; what they do along the last dim is their own."""
GROUPED = frozenset(
    {"meshwright.grouped_mm.default", "aten._grouped_mm.default", "transformers.grouped_mm_fallback.default"}
)
_FLATTENED = frozenset({"aten.flatten.using_ints", "aten.reshape.default", "aten.view.default"})


def mix(
    tokens: Tensor, chosen: Tensor, weights: Tensor, params: Sequence[Tensor], *, body: Body, experts: int
) -> Tensor:
    """tokens [t, h], chosen and weights [t, picks], each parameter [experts, ...]: the weighted sum over picks."""
    order = chosen.flatten().argsort()
    rows = tokens[order // chosen.shape[1]]
    counts = count_rows(chosen, experts)
    made = run_body(body, rows, counts.cumsum(0).to(torch.int32), chosen.flatten()[order], params)
    return combine(made, weights, order)


def count_rows(chosen: Tensor, experts: int) -> Tensor:
    """How many picks each expert has; experts below 0 or past the last are left out."""
    return torch.histc(chosen.flatten().float(), experts, 0, experts - 1).to(torch.int64)


def combine(rows: Tensor, weights: Tensor, order: Tensor) -> Tensor:
    """Rows in sorted order, weighed, put back in the tokens' order and summed over the picks."""
    weighed = rows * weights.flatten()[order].unsqueeze(-1)
    return weighed[order.argsort()].view(-1, weights.shape[1], rows.shape[-1]).sum(1)


def run_body(body: Body, rows: Tensor, ends: Tensor, ids: Tensor, params: Sequence[Tensor]) -> Tensor:
    from meshwright.capture.targets import resolve

    known: dict[str, Any] = {"$rows": rows, "$ends": ends, "$ids": ids}
    known |= {f"$p{i}": param for i, param in enumerate(params)}

    def leaf(arg: Any) -> Any:
        if isinstance(arg, list | tuple):
            return tuple(map(leaf, arg))
        return known[arg] if isinstance(arg, str) and arg in known else arg

    found: Any = rows
    for target, args, kwargs, count in body:
        made = resolve(target)(*leaf(args), **{key: leaf(arg) for key, arg in kwargs})
        found = list(made) if count > 1 else [made]
        start = sum(name.startswith("$v") for name in known)
        known |= {f"$v{start + i}": tensor for i, tensor in enumerate(found)}
    result: Tensor = found[-1]
    return result


@dataclass(slots=True)
class _Region:
    """One stretch on its way to being one op: what it reads, and the values that go away with it.

    names: what the body calls the values that come from outside of it.
    """

    order: str
    ids: str
    chosen: str
    weights: str
    picks: int
    tokens: str = ""
    experts: int = 0
    names: dict[str, str] = field(default_factory=dict)
    params: list[str] = field(default_factory=list)
    body: list[Op] = field(default_factory=list)
    gone: set[str] = field(default_factory=set)

    def param(self, name: str) -> None:
        if name not in self.params:
            self.names[name] = f"$p{len(self.params)}"
            self.params.append(name)


class _Mismatch(Exception):  # noqa: N818  not an error: this stretch is something else
    pass


def fuse(ops: Sequence[Op], values: Mapping[str, Value], keep: set[str]) -> list[Op]:
    """The same program with every mixture of experts as one op. `keep`: values that must stay."""
    if not any(op.target in GROUPED for op in ops):
        return list(ops)
    finder = _Finder(ops, values)
    found = list(ops)
    for index, op in enumerate(ops):
        if op.target != "aten.sum.dim_IntList":
            continue
        try:
            region = finder.region(op)
        except _Mismatch:
            continue
        if not region.gone & keep and not finder.used_outside(region.gone, region.gone | {op.name}):
            found[index] = _fused(op, region)
    return _live(found, keep)


def _fused(op: Op, region: _Region) -> Op:
    names, count = dict(region.names), 0
    calls = []
    for inner in region.body:
        args, kwargs = (map_leaves(side, lambda leaf: _renamed(leaf, names)) for side in (inner.args, inner.kwargs))
        calls.append((inner.target, args, kwargs, len(inner.results)))
        for value in inner.results:
            names[value.name] = f"$v{count}"
            count += 1
    tensors = (Ref(region.tokens), Ref(region.chosen), Ref(region.weights), tuple(map(Ref, region.params)))
    return Op(MIX, tensors, (("body", tuple(calls)), ("experts", region.experts)), op.results, op.module)


def _renamed(leaf: Any, names: Mapping[str, str]) -> Any:
    return names[leaf.name] if isinstance(leaf, Ref) else leaf


def _live(ops: Sequence[Op], needed: set[str]) -> list[Op]:
    kept, wanted = [], set(needed)
    for op in reversed(ops):
        if any(value.name in wanted for value in op.results):
            kept.append(op)
            wanted.update(op.uses())
    return kept[::-1]


class _Finder:
    """Reads the program backwards from the sum over picks."""

    def __init__(self, ops: Sequence[Op], values: Mapping[str, Value]) -> None:
        self.maker = {value.name: op for op in ops for value in op.results}
        self.values = dict(values) | {value.name: value for op in ops for value in op.results}
        self.readers: dict[str, list[Op]] = {}
        for op in ops:
            for name in op.uses():
                self.readers.setdefault(name, []).append(op)

    def used_outside(self, names: set[str], inside: set[str]) -> bool:
        readers = (op for name in names for op in self.readers.get(name, ()))
        return any(value.name not in inside for op in readers for value in op.results)

    def region(self, last: Op) -> _Region:
        view = self._made(last.args[0], *_FLATTENED)
        back = self._made(view.args[0], "aten.index.Tensor")
        weighed = self._made(back.args[0], "aten.mul.Tensor")
        sort, order = self._undone(back)
        rows, weights = self._factors(weighed, order)
        chosen = self._flat(sort.args[0])
        picks = self._shape(chosen)[-1]
        if tuple(last.args[1]) != (1,) or not isinstance(picks, int) or self._shape(view.name)[-2] != picks:
            raise _Mismatch
        found = _Region(order, sort.results[0].name, chosen, weights, picks, gone={view.name, back.name, weighed.name})
        self._walk(rows, found)
        if not found.tokens or not found.experts or len(self._shape(found.tokens)) != 2:
            raise _Mismatch
        return found

    def _made(self, ref: Any, *targets: str) -> Op:
        op = self.maker.get(ref.name) if isinstance(ref, Ref) else None
        if op is None or op.target not in targets:
            raise _Mismatch
        return op

    def _shape(self, name: str) -> tuple[Size, ...]:
        return self.values[name].type.shape

    def _flat(self, ref: Any) -> str:
        """The [tokens, picks] tensor that this is all of, in a row."""
        source = self._made(ref, *_FLATTENED).args[0]
        if len(self._shape(ref.name)) != 1 or len(self._shape(source.name)) != 2:
            raise _Mismatch
        return str(source)

    def _undone(self, back: Op) -> tuple[Op, str]:
        """The sort whose order `back` undoes (it is indexed by where each place went), and that order."""
        op = self._made(back.args[1][0], "aten.argsort.default", "aten.index_put.default")
        order = op.args[0]
        if op.target == "aten.index_put.default":
            order = op.args[1][0]
            self._made(op.args[2], "aten.arange.default")
        sort = self._made(order, "aten.argsort.default", "aten.sort.default")
        if len(back.args[1]) != 1 or order.name != sort.results[-1].name:
            raise _Mismatch
        return sort, str(order)

    def _factors(self, weighed: Op, order: str) -> tuple[str, str]:
        """(the rows, the [tokens, picks] weights that stand beside them as a column in the same order)."""
        for rows, column in (weighed.args, weighed.args[::-1]):
            op = self.maker.get(column.name) if isinstance(column, Ref) else None
            if op is not None and op.target == "aten.unsqueeze.default":
                picked = self._made(op.args[0], "aten.index.Tensor")
                if picked.args[1] == (Ref(order),):
                    return str(rows), self._flat(picked.args[0])
        raise _Mismatch

    def _walk(self, name: str, found: _Region) -> None:
        """Collect the body's ops in an order in which they can run, down to the gathered rows."""
        op = self.maker.get(name)
        if op is None:
            raise _Mismatch
        if name in found.gone:
            return
        found.gone |= {value.name for value in op.results}
        if self._is_gather(op, found):
            if found.tokens:
                raise _Mismatch
            found.tokens, found.names[name] = str(op.args[0]), "$rows"
            return
        if op.target in GROUPED:
            self._grouped(op, found)
        elif op.target == "aten.index.Tensor" and op.args[1] == (Ref(found.ids),) and found.ids != found.order:
            found.names[found.ids] = "$ids"
            found.param(str(op.args[0]))
        elif op.target in ROWWISE:
            for operand in op.uses():
                self._walk(operand, found)
        else:
            raise _Mismatch
        found.body.append(op)

    def _is_gather(self, op: Op, found: _Region) -> bool:
        if op.target != "aten.index.Tensor" or len(op.args[1]) != 1 or not isinstance(op.args[1][0], Ref):
            return False
        place = self.maker.get(op.args[1][0].name)
        if place is None or place.target != "aten.floor_divide.default":
            return False
        return place.args == (Ref(found.order), found.picks)

    def _grouped(self, op: Op, found: _Region) -> None:
        rows, weight, ends = op.args
        experts = self._counted(ends)
        if experts != self._shape(weight.name)[0] or found.experts not in (0, experts):
            raise _Mismatch
        found.experts, found.names[ends.name] = experts, "$ends"
        found.param(weight.name)
        self._walk(rows.name, found)

    def _counted(self, ends: Any) -> int:
        """How many experts were counted: the ends are running sums of a histogram."""
        op = self._made(ends, "aten.to.dtype", "aten.cumsum.default")
        while op.target != "aten.histc.default":
            op = self._made(op.args[0], "aten.to.dtype", "aten.cumsum.default", "aten.histc.default")
        bins, low, high = op.args[1:4]
        if (low, high) != (0, bins - 1):
            raise _Mismatch
        return int(bins)
