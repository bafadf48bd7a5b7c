"""Ops that write in place, made functional while composite ops stay whole.

A write makes a new value. Whatever shares memory with the written tensor then means something else: its base takes
the new value through the inverse of each view in between, and other views are taken again when they are next read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from meshwright.capture.program import Op, Ref, TensorType
from meshwright.errors import CaptureError

Emit = Callable[[str, tuple[Any, ...], TensorType, str], str]
"""(target, arguments, type of the result, module) -> the new value's name."""


@dataclass(frozen=True, slots=True)
class View:
    """One result of an op that shares memory with its first operand, `base`."""

    base: str
    op: Op
    index: int


@dataclass(slots=True)
class Memory:
    """now: the value that stands for a captured name. version: writes so far per root; seen: when `now` was right."""

    types: dict[str, TensorType]
    emit: Emit
    views: dict[str, View] = field(default_factory=dict)
    now: dict[str, str] = field(default_factory=dict)
    version: dict[str, int] = field(default_factory=dict)
    seen: dict[str, int] = field(default_factory=dict)

    def read(self, name: str) -> str:
        """The value that `name` means at this point; a view of something written since is taken again."""
        version = self.version.get(self.root(name), 0)
        if self.seen.get(name, 0) != version:
            view = self.views[name]
            args = (Ref(self.read(view.base)), *view.op.args[1:])
            self.now[name] = self._again(view, args)
            self.seen[name] = version
        return self.now.get(name, name)

    def write(self, name: str, value: str) -> None:
        """`name` now holds `value`, and so does everything it is a view of."""
        chain = [(name, value)]
        while name in self.views:
            view = self.views[name]
            value = self._inverse(view, self.read(view.base), value)
            name = view.base
            chain.append((name, value))
        version = self.version[name] = self.version.get(name, 0) + 1
        for member, held in chain:
            self.now[member], self.seen[member] = held, version

    def root(self, name: str) -> str:
        while name in self.views:
            name = self.views[name].base
        return name

    def _again(self, view: View, args: tuple[Any, ...]) -> str:
        op, type_ = view.op, view.op.results[view.index].type
        if len(op.results) == 1:
            return self.emit(op.target, args, type_, op.module)
        start, dim = _offset(op, view.index)
        if op.target == "aten.unbind.int":
            return self.emit("aten.select.int", (args[0], dim, start), type_, op.module)
        return self.emit("aten.slice.Tensor", (args[0], dim, start, _end(start, type_, dim)), type_, op.module)

    def _inverse(self, view: View, base: str, value: str) -> str:
        """The base with `value` in the place that the view shows."""
        op, type_ = view.op, self.types[view.base]
        name = op.target.split(".")[1]
        if name in _SAME:
            return value
        if name in _SHAPES:
            return self.emit("aten.reshape.default", (Ref(value), type_.shape), type_, op.module)
        if name in ("transpose", "t"):
            return self.emit(op.target, (Ref(value), *op.args[1:]), type_, op.module)
        if name == "permute":
            order = op.args[1]
            back = tuple(order.index(dim) for dim in range(len(order)))
            return self.emit(op.target, (Ref(value), back), type_, op.module)
        if name in ("slice", "select", "diagonal") and not (name == "diagonal" and type_.dtype in _REAL):
            return self._scatter(f"aten.{name}_scatter.default", base, value, op.args[1:], view)
        if name in ("split", "split_with_sizes", "chunk", "unbind"):
            start, dim = _offset(op, view.index)
            if name == "unbind":
                return self._scatter("aten.select_scatter.default", base, value, (dim, start), view)
            end = _end(start, op.results[view.index].type, dim)
            return self._scatter("aten.slice_scatter.default", base, value, (dim, start, end), view)
        raise CaptureError(
            f"{op.module or 'the model'} writes in place through {op.target}",
            "in-place writes through slices, selections, transposes and reshapes",
            "write to a new tensor instead",
        )

    def _scatter(self, target: str, base: str, value: str, args: tuple[Any, ...], view: View) -> str:
        """A part written into its base. Autograd has no scatter of complex numbers: theirs is one of pairs."""
        type_, module = self.types[view.base], view.op.module
        if type_.dtype not in _REAL:
            return self.emit(target, (Ref(base), Ref(value), *args), type_, module)
        dim, *rest = args or (0,)
        pairs = []
        for name in (base, value):
            wide = TensorType((*self.types[name].shape, 2), _REAL[type_.dtype])
            pairs.append(self.emit("aten.view_as_real.default", (Ref(name),), wide, module))
        counted = (dim % len(type_.shape), *rest)
        wide = self.types[pairs[0]]
        made = self.emit(target, (Ref(pairs[0]), Ref(pairs[1]), *counted), wide, module)
        return self.emit("aten.view_as_complex.default", (Ref(made),), type_, module)


_REAL = {"complex64": "float32", "complex128": "float64"}
_SAME = ("alias", "contiguous", "to", "lift_fresh", "expand", "type_as", "detach")
_SHAPES = ("view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "view_as", "reshape_as")


def _offset(op: Op, index: int) -> tuple[Any, int]:
    """Where one of several parts of a tensor begins, and along which dim."""
    unbind = op.target == "aten.unbind.int"
    position = 1 if unbind else 2
    dim = op.args[position] if len(op.args) > position else dict(op.kwargs).get("dim", 0)
    if unbind:
        return index, dim
    return sum(_whole(part.type.shape[dim]) for part in op.results[:index]), dim


def _end(start: int, part: TensorType, dim: int) -> int:
    return start + _whole(part.shape[dim])


def _whole(size: Any) -> int:
    if not isinstance(size, int):
        raise CaptureError(
            "the model splits a tensor along its batch and writes to a part in place",
            "in-place writes to parts of one sample",
            "write to a new tensor instead",
        )
    return size
