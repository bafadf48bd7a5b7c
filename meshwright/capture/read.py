"""From an exported graph to a flat list of Ops: the first, uncut form of a Program.

Asserts are dropped and the few ops that write to a buffer become functional ones with an update.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from meshwright.capture.program import Op, Parameter, Ref, RunDevice, TensorType, TorchConstant, Value
from meshwright.capture.sizes import Size, fit_size
from meshwright.errors import CaptureError
from meshwright.torch_compat import symbolic_value

DROPPED = ("aten._assert_tensor_metadata.default", "aten._assert_scalar.default", "aten.sym_size.int")
BATCH_NORM = "meshwright.capture.functional:batch_norm"


@dataclass(frozen=True, slots=True)
class Flat:
    """A captured forward before cutting. Parameters and buffers stand under their first name."""

    inputs: tuple[Value, ...]
    parameters: tuple[Parameter, ...]
    buffers: tuple[Parameter, ...]
    ops: tuple[Op, ...]
    updates: tuple[tuple[str, str], ...]
    loss: str


def read(exported: ExportedProgram, model: nn.Module) -> Flat:
    reader = _Reader(exported, model)
    for node in exported.graph.nodes:
        if node.op == "call_function":
            reader.call(node)
        elif node.op == "output":
            reader.loss = node.args[0][-1].name
    return reader.finish()


class _Reader:
    """Walks the graph once; `leaf` holds what each node's name stands for in an argument."""

    def __init__(self, exported: ExportedProgram, model: nn.Module) -> None:
        self.leaf: dict[str, Any] = {}
        self.grad: dict[str, bool] = {}
        self.ops: list[Op] = []
        self.inputs: list[Value] = []
        self.updates: dict[str, str] = {}
        self.current: dict[str, str] = {}
        self.loss = ""
        parameters = _first_names(list(model.named_parameters(remove_duplicate=False)))
        buffers = _first_names(list(model.named_buffers(remove_duplicate=False)))
        self.parameters, self.buffers = _records(parameters), _records(buffers)
        first = {
            name: entry.name for entry in (*self.parameters, *self.buffers) for name in (entry.name, *entry.aliases)
        }
        trainable = {entry.name: entry.trainable for entry in self.parameters}
        placeholders = {node.name: node for node in exported.graph.nodes if node.op == "placeholder"}
        for spec in exported.graph_signature.input_specs:
            self._bind(
                placeholders[spec.arg.name],
                spec.kind,
                (spec.target or "").removeprefix("model."),
                first,
                trainable,
            )

    def _bind(
        self, node: fx.Node, kind: InputKind, target: str, first: dict[str, str], trainable: dict[str, bool]
    ) -> None:
        if kind in (InputKind.PARAMETER, InputKind.BUFFER):
            name = first[target]
            self.leaf[node.name] = Ref(name)
            self.grad[name] = trainable.get(name, False)
        elif kind == InputKind.USER_INPUT and isinstance(node.meta.get("val"), Tensor):
            name = node.name.removeprefix("batch_")
            self.inputs.append(Value(name, _type(node.meta["val"])))
            self.leaf[node.name] = Ref(name)
        elif node.users:
            raise CaptureError(
                f"the model holds a constant tensor {target or node.name!r} outside its parameters and buffers",
                "every tensor of the model registered",
                "register it with `register_buffer`",
            )

    def call(self, node: fx.Node) -> None:
        target = _target_text(node)
        value = node.meta.get("val")
        if target == "getitem" and isinstance(node.args[0], fx.Node):
            self.leaf[node.name] = Ref(f"{node.args[0].name}_{node.args[1]}")
        elif isinstance(value, torch.SymInt | int):
            self.leaf[node.name] = _size(value)
        elif target not in DROPPED:
            self._append(node, target, value)

    def _append(self, node: fx.Node, target: str, value: Any) -> None:
        args = self._tree(node.args)
        kwargs = tuple((key, self._tree(arg)) for key, arg in node.kwargs.items() if key != "pin_memory")
        op = Op(target, args, kwargs, (), _module(node))
        grad = "detach" not in target and any(self.grad.get(name, False) for name in op.uses())
        several = isinstance(value, list | tuple)
        tensors = list(value) if several else [value]
        names = [f"{node.name}_{i}" for i in range(len(tensors))] if several else [node.name]
        results = [Value(n, _type(t), grad and t.dtype.is_floating_point) for n, t in zip(names, tensors, strict=True)]
        op = replace(op, results=tuple(results))
        op = self._batch_norm(op) if target == "aten.batch_norm.default" and args[5] else self._in_place(op)
        self.ops.append(op)
        for result in op.results:
            self.leaf[result.name] = Ref(result.name)
            self.grad[result.name] = result.grad

    def _batch_norm(self, op: Op) -> Op:
        """Training BatchNorm returns its new running statistics instead of writing them."""
        x, weight, bias, mean, var, _, momentum, eps, *_ = op.args
        if not isinstance(mean, Ref):
            return op
        y = op.results[0]
        statistics = [
            Value(f"{y.name}_{kind}", next(b.type for b in self.buffers if b.name == ref.name))
            for kind, ref in (("mean", mean), ("var", var))
        ]
        self.updates |= {mean.name: statistics[0].name, var.name: statistics[1].name}
        args = (x, weight, bias, mean, var, momentum, eps)
        return replace(op, target=BATCH_NORM, args=args, kwargs=(), results=(y, *statistics))

    def _in_place(self, op: Op) -> Op:
        """`add_` on a buffer becomes `add` and an update; other in-place ops are refused by name."""
        namespace, name, *overload = op.target.split(".")
        if namespace != "aten" or not name.endswith("_") or name.endswith("__"):
            return op
        written = op.args[0]
        if not isinstance(written, Ref) or all(written.name != buffer.name for buffer in self.buffers):
            raise CaptureError(
                f"{op.target} in {op.module or 'the model'} writes to a value in place",
                "in-place operations on registered buffers only",
                f"use the out-of-place form of {name.rstrip('_')!r}",
            )
        self.updates[written.name] = op.results[0].name
        return replace(op, target=".".join([namespace, name.rstrip("_"), *overload]))

    def _tree(self, tree: Any) -> Any:
        if isinstance(tree, list | tuple):
            return tuple(self._tree(item) for item in tree)
        if isinstance(tree, fx.Node):
            return self.leaf[tree.name]
        if isinstance(tree, torch.device):
            return RunDevice()
        if isinstance(tree, torch.dtype | torch.layout | torch.memory_format):
            return TorchConstant(str(tree).removeprefix("torch."))
        return tree

    def finish(self) -> Flat:
        used = {name for op in self.ops for name in op.uses()}
        parameters = tuple(parameter for parameter in self.parameters if parameter.name in used)
        return Flat(
            tuple(self.inputs),
            parameters,
            self.buffers,
            tuple(self.ops),
            tuple(self.updates.items()),
            self.loss,
        )


def _first_names(named: list[tuple[str, Tensor]]) -> dict[int, tuple[Tensor, list[str]]]:
    found: dict[int, tuple[Tensor, list[str]]] = {}
    for name, tensor in named:
        found.setdefault(id(tensor), (tensor, []))[1].append(name)
    return found


def _records(found: dict[int, tuple[Tensor, list[str]]]) -> tuple[Parameter, ...]:
    return tuple(
        Parameter(names[0], _type(tensor), tensor.requires_grad, tuple(names[1:])) for tensor, names in found.values()
    )


def _type(tensor: Tensor) -> TensorType:
    return TensorType(tuple(_size(size) for size in tensor.shape), str(tensor.dtype).removeprefix("torch."))


def _size(size: Any) -> Size:
    if isinstance(size, int):
        return size
    found = fit_size(lambda batch: symbolic_value(size, batch))
    if found is None:
        raise CaptureError(
            f"a tensor has size {size}, where the symbol is the batch",
            "sizes that are polynomials in the batch",
            "capture at the batch you train with; a batch-dependent shape of this kind is not supported",
        )
    return found.coefficients[0] if not any(found.coefficients[1:]) else found


def _target_text(node: fx.Node) -> str:
    if node.target is operator.getitem:
        return "getitem"
    return str(node.target)


def _module(node: fx.Node) -> str:
    stack: Callable[..., Any] | dict[str, Any] = node.meta.get("nn_module_stack") or {}
    paths = [str(path) for path, _ in stack.values()] if isinstance(stack, dict) else []
    return paths[-1].removeprefix("model").removeprefix(".") if paths and "_empty" not in paths[-1] else ""
