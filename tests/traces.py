"""Joint graphs that are traced once for all tests, ranks of pools included: most of what a rank does is to trace what
the others trace too.

`share` puts this in the place of `meshwright.generate.joint.trace`. Tests of the tracing itself are told apart by
`fresh`. A graph is written as its nodes; of what a node says of its result (`meta`), shapes, strides and storages are.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from captures import alone, file_of, read_file, write_file
from torch import Tensor, fx, nn
from torch.fx._lazy_graph_module import _LazyGraphModule

from meshwright.caches import CACHES
from meshwright.capture.program import SegmentGraph
from meshwright.generate import joint
from meshwright.generate.joint import Joint
from meshwright.torch_compat import fake_mode

traced = joint.trace.__wrapped__  # type: ignore[attr-defined]


class _Sharing:
    on = True


@CACHES.memoized(maxsize=256)
def trace(graph: SegmentGraph, device: str = "cpu", kernels: str = "", images: bool = False) -> Joint:
    """As `traced` makes it, here or in another process of the session."""
    file = file_of(("trace", repr(graph), device, kernels, images)) if _Sharing.on else None
    if file is None:
        return traced(graph, device, kernels, images)  # type: ignore[no-any-return]
    with alone(file):
        with suppress(AttributeError):  # an op that is not registered here
            if (found := read_file(file)) is not None and found.joint.graph == graph:
                return restored(found)
        made: Joint = traced(graph, device, kernels, images)
        with suppress(TypeError):  # something that cannot be written
            write_file(file, written(made))
    return made


@contextmanager
def fresh() -> Iterator[None]:
    """Every graph is traced anew."""
    _Sharing.on = False
    trace.cache_clear()  # type: ignore[attr-defined]
    try:
        yield
    finally:
        _Sharing.on = True


def share() -> None:
    """Called before anything else imports the function."""
    joint.trace = trace


@dataclass(frozen=True, slots=True)
class _Ref:
    """A node, by name."""

    name: str


@dataclass(frozen=True, slots=True)
class _Lies:
    """A tensor: its storage, by number, and how it lies there."""

    storage: int
    dtype: torch.dtype
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


@dataclass(frozen=True, slots=True)
class _Node:
    op: str
    name: str
    target: str
    args: Any
    kwargs: Any
    value: Any


@dataclass(frozen=True, slots=True)
class Written:
    """joint: without its module and names, which `nodes` and `names` (by node) hold. storages: bytes and device."""

    joint: Joint
    nodes: tuple[_Node, ...]
    names: dict[str, str]
    storages: tuple[tuple[int, torch.device], ...]


def written(found: Joint) -> Written:
    """Raises TypeError where a node cannot be written: sizes that the data tells, functions, constants."""
    storages: dict[int, tuple[int, Tensor]] = {}
    nodes = tuple(_written(node, storages) for node in found.module.graph.nodes)
    sizes = tuple((tensor.untyped_storage().nbytes(), tensor.device) for _, tensor in storages.values())
    names = {node.name: name for node, name in found.names.items()}
    return Written(replace(found, module=None, names={}), nodes, names, sizes)  # type: ignore[arg-type]


def _written(node: fx.Node, storages: dict[int, tuple[int, Tensor]]) -> _Node:
    if node.op not in ("placeholder", "call_function", "output"):
        raise TypeError(node.op)
    target = _name(node.target) if node.op == "call_function" else str(node.target)
    args, kwargs = (fx.map_arg(_plain(one), lambda other: _Ref(other.name)) for one in (node.args, node.kwargs))
    return _Node(node.op, node.name, target, args, kwargs, _value(node.meta.get("val"), storages))


def _name(target: Any) -> str:
    if target is operator.getitem:
        return ""
    if not isinstance(target, torch._ops.OpOverload) or _target(str(target)) is not target:
        raise TypeError(str(target))
    return str(target)


def _target(name: str) -> Any:
    if not name:
        return operator.getitem
    space, op, overload = name.split(".")
    return getattr(getattr(getattr(torch.ops, space), op), overload)


def _plain(argument: Any) -> Any:
    """As it is, if a file can hold it."""
    if isinstance(argument, tuple | list):
        return type(argument)(map(_plain, argument))
    if isinstance(argument, Mapping):
        return {key: _plain(value) for key, value in argument.items()}
    kinds = fx.Node | bool | int | float | str | torch.dtype | torch.device | torch.layout | torch.memory_format
    if argument is None or isinstance(argument, kinds):
        return argument
    raise TypeError(f"{type(argument)}")


def _value(value: Any, storages: dict[int, tuple[int, Tensor]]) -> Any:
    if isinstance(value, tuple | list):
        return type(value)(_value(one, storages) for one in value)
    if not isinstance(value, Tensor):
        return _plain(value)
    sizes, strides, offset = tuple(value.shape), value.stride(), value.storage_offset()
    if not all(isinstance(size, int) for size in (*sizes, *strides, offset)):
        raise TypeError("sizes that the data tells")
    number, first = storages.setdefault(value.untyped_storage()._cdata, (len(storages), value))
    if first.dtype != value.dtype:
        raise TypeError("two dtypes of one storage")
    return _Lies(number, value.dtype, sizes, strides, offset)


def restored(found: Written) -> Joint:
    mode, graph, nodes = fake_mode(), fx.Graph(), dict[str, fx.Node]()
    whole: dict[int, Tensor] = {}

    def tensor(lies: _Lies) -> Tensor:
        size, device = found.storages[lies.storage]
        if lies.storage not in whole:
            if size == prod(lies.sizes) * lies.dtype.itemsize:  # all of it
                whole[lies.storage] = torch.empty_strided(lies.sizes, lies.strides, dtype=lies.dtype, device=device)
                return whole[lies.storage]
            whole[lies.storage] = torch.empty(size // lies.dtype.itemsize, dtype=lies.dtype, device=device)
        return whole[lies.storage].as_strided(lies.sizes, lies.strides, lies.offset)

    def value(given: Any) -> Any:
        if isinstance(given, tuple | list):
            return type(given)(map(value, given))
        return tensor(given) if isinstance(given, _Lies) else given

    with mode:
        for one in found.nodes:
            target = _target(one.target) if one.op == "call_function" else one.target
            args, kwargs = _nodes(one.args, nodes), _nodes(one.kwargs, nodes)
            node = graph.create_node(one.op, target, args, kwargs, one.name)
            nodes[one.name] = node
            if one.value is not None:
                node.meta["val"] = value(one.value)
    for name, node in nodes.items():
        node.name = name
    module = _LazyGraphModule(nn.Module(), graph)  # as a trace gives it: code is written for those that run
    return replace(found.joint, module=module, names={nodes[node]: name for node, name in found.names.items()})


def _nodes(given: Any, nodes: Mapping[str, fx.Node]) -> Any:
    if isinstance(given, tuple | list):
        return type(given)(_nodes(one, nodes) for one in given)
    if isinstance(given, Mapping):
        return {key: _nodes(one, nodes) for key, one in given.items()}
    return nodes[given.name] if isinstance(given, _Ref) else given
