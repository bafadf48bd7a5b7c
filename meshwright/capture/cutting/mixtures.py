"""Finding mixtures of experts: stretches of ops that become one, `experts.mix`.

Models write them out: sort the picks, gather tokens in that order, multiply group by group, weigh, undo the order,
sum over the picks. Some guard against picks of no expert (`id >= experts`): a mask over the rows, ids held below the
last. Where the picks are the top few of as many scores as there are experts, no such pick exists, and the guards
stand for nothing; the mask itself is work that eager does, and stays in the body.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from meshwright.capture.experts import GROUPED, MIX
from meshwright.capture.op import live
from meshwright.capture.program import Op, Ref, Value
from meshwright.capture.sizes import Size

_ROWWISE = """
    silu gelu relu sigmoid tanh mul.Tensor add.Tensor sub.Tensor div.Tensor neg pow.Tensor_Scalar square clamp exp
    chunk split.Tensor to.dtype clone contiguous
"""
ROWWISE = frozenset(f"aten.{name}" if "." in name else f"aten.{name}.default" for name in _ROWWISE.split())
"""Ops that treat every row by itself; what they do along the last dim is their own."""
_FLATTENED = frozenset({"aten.flatten.using_ints", "aten.reshape.default", "aten.view.default"})
_MASKED = ("aten.masked_fill.Scalar", "aten.masked_fill.Tensor")


@dataclass(slots=True)
class _Region:
    """One stretch on its way to being one op: what it reads, and the values that go away with it.

    names: what the body calls the values that come from outside of it. guards: the numbers from which on an id is
    taken to be no expert's.
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
    guards: set[int] = field(default_factory=set)

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
    return live(found, keep)


def _fused(op: Op, region: _Region) -> Op:
    names, count = dict(region.names), 0
    calls = []
    for inner in region.body:
        named = inner.map(lambda leaf: names[leaf.name] if isinstance(leaf, Ref) else leaf)
        calls.append((inner.target, named.args, named.kwargs, len(inner.results)))
        for value in inner.results:
            names[value.name] = f"$v{count}"
            count += 1
    tensors = (Ref(region.tokens), Ref(region.chosen), Ref(region.weights), tuple(map(Ref, region.params)))
    return Op(MIX, tensors, (("body", tuple(calls)), ("experts", region.experts)), op.results, op.module)


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
        masked, weighed = self._unmasked(back.args[0])
        sort, order = self._undone(back)
        rows, weights = self._factors(weighed, order)
        chosen = self._flat(sort.args[0])
        picks = self._shape(chosen)[-1]
        if tuple(last.args[1]) != (1,) or not isinstance(picks, int) or self._shape(view.name)[-2] != picks:
            raise _Mismatch
        found = _Region(order, sort.results[0].name, chosen, weights, picks, gone={view.name, back.name, weighed.name})
        if masked is not None:
            self._guard(masked, found)
            found.gone.add(masked.name)
        self._walk(rows, found)
        if not found.tokens or not found.experts or len(self._shape(found.tokens)) != 2:
            raise _Mismatch
        if found.guards and not (found.guards == {found.experts} and self._picks_exist(chosen, found.experts)):
            raise _Mismatch
        return found

    def _unmasked(self, ref: Any) -> tuple[Op | None, Op]:
        """(the mask over the weighed rows, if there is one, and the product that weighs them)."""
        op = self._made(ref, "aten.mul.Tensor", *_MASKED)
        return (None, op) if op.target not in _MASKED else (op, self._made(op.args[0], "aten.mul.Tensor"))

    def _guard(self, masked: Op, found: _Region) -> tuple[Op, Op]:
        """The ops that make the mask of rows whose id is no expert's."""
        column = self._made(masked.args[1], "aten.unsqueeze.default")
        beyond = self._made(column.args[0], "aten.ge.Scalar")
        if beyond.args[0] != Ref(found.ids):
            raise _Mismatch
        found.guards.add(beyond.args[1])
        return beyond, column

    def _picks_exist(self, chosen: str, experts: int) -> bool:
        """Whether the picks are the top few of one score per expert, and so always some expert's number."""
        op = self.maker.get(chosen)
        while op is not None and op.target in _FLATTENED:
            op = self.maker.get(op.operands()[0])
        if op is None or op.target != "aten.topk.default" or (len(op.args) > 2 and op.args[2] not in (-1,)):
            return False
        return self._shape(op.operands()[0])[-1] == experts

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
        """(the rows, the [tokens, picks] weights that belong to them, as a column in the same order)."""
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
        elif op.target == "aten.index.Tensor" and self._is_ids(op.args[1], found):
            found.param(str(op.args[0]))
        elif op.target in _MASKED:
            self._walk(str(op.args[0]), found)
            found.names[found.ids] = "$ids"
            guard = [made for made in self._guard(op, found) if made not in found.body]
            found.body += guard
            found.gone |= {made.name for made in guard}
        elif op.target in ROWWISE:
            for operand in op.uses():
                self._walk(operand, found)
        else:
            raise _Mismatch
        found.body.append(op)

    def _is_ids(self, indices: tuple[Any, ...], found: _Region) -> bool:
        """Whether something per expert is taken for each row, by ids as they are or held below the last."""
        if len(indices) != 1 or not isinstance(indices[0], Ref) or found.ids == found.order:
            return False
        name = indices[0].name
        held = self.maker.get(name)
        if held is not None and held.target == "aten.clamp.default" and held.args[:2] == (Ref(found.ids), None):
            found.guards.add(held.args[2] + 1)
            found.gone.add(name)
        elif name != found.ids:
            return False
        found.names[name] = "$ids"
        return True

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
