"""From an exported graph to a flat list of Ops: the first, uncut form of a Program.

Asserts are dropped, regions without gradient are inlined, and ops that write in place become functional ones;
a buffer that was written ends up as an update.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from meshwright.capture.flat import Flat
from meshwright.capture.functional import BATCH_NORM, CONSTANT
from meshwright.capture.op import live
from meshwright.capture.program import Op, Ref, RunDevice, TensorType, TorchConstant, Value, map_leaves
from meshwright.capture.reading.alias import Memory, View
from meshwright.capture.reading.emit import Emitter
from meshwright.capture.reading.inplace import check_written, functional_form, out_form, outputs_of
from meshwright.capture.reading.nodes import (
    AUTOCAST_REGION,
    changes_nothing,
    line_of,
    module_of,
    sized_by_data,
    tracked_instances,
    unsupported,
)
from meshwright.capture.reading.random import keyed
from meshwright.capture.reading.replay import Replay
from meshwright.capture.reading.traced import Unknown, held_tensors, tensor_type, traced_number, unknown_number
from meshwright.capture.tracing.opaque import OPERATOR, Entries, Slot, recorded
from meshwright.errors import CaptureError
from meshwright.torch_compat import has_unbacked_symbol, is_fake, returns_view, shares_storage, writes_argument

LARGEST_CONSTANT = 4096
NO_GRAD_REGION = "wrap_with_set_grad_enabled"


def read(exported: ExportedProgram, model: nn.Module, notes: Iterable[str] = (), *, by_key: bool = True) -> Flat:
    """by_key: random ops draw by key, as a planned run does, not from torch's generator, as eager does."""
    reader = _Reader(exported, model)
    reader.walk(exported.graph)
    return reader.finish(notes, by_key)


class _Reader:
    """Walks the graph once; `leaf` holds what each node stands for in an argument."""

    def __init__(self, exported: ExportedProgram, model: nn.Module) -> None:
        self.exported = exported
        self.leaf: dict[fx.Node, Any] = {}
        self.out = Emitter()
        self.inputs: list[Value] = []
        self.notes: list[str] = []
        self.made: list[TensorType] = []
        self.constants: set[str] = set()
        self.memory = Memory(self.out.types, self.out.emit)
        self.replay = Replay(self.out.ops, self.memory, self.out.add)
        self.parameters = held_tensors(model.named_parameters(remove_duplicate=False))
        self.buffers = held_tensors(model.named_buffers(remove_duplicate=False))
        for parameter in self.parameters:
            self.out.define(Value(parameter.name, parameter.type, parameter.trainable))
        for buffer in self.buffers:
            self.out.define(Value(buffer.name, buffer.type))
        self.loss = ""
        self._bind_placeholders()

    def _bind_placeholders(self) -> None:
        held = (*self.parameters, *self.buffers)
        first = {name: entry.name for entry in held for name in (entry.name, *entry.aliases)}
        nodes = {node.name: node for node in self.exported.graph.nodes if node.op == "placeholder"}
        for spec in self.exported.graph_signature.input_specs:
            node = nodes[spec.arg.name]
            target = (spec.target or "").removeprefix("model.")
            if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER):
                self.leaf[node] = Ref(first[target])
            elif spec.kind == InputKind.USER_INPUT and isinstance(node.meta.get("val"), Tensor):
                value = Value(node.name.removeprefix("batch_"), tensor_type(node.meta["val"]))
                self.inputs.append(value)
                self.leaf[node] = Ref(self.out.define(value))
            elif node.users:
                self._constant(node, spec.target or node.name)

    def _constant(self, node: fx.Node, target: str) -> None:
        """A tensor the model holds or makes outside its parameters and buffers: kept as literal numbers."""
        tensor, name = self.exported.constants.get(target), target.removeprefix("model.")
        if not isinstance(tensor, Tensor) or is_fake(tensor) or tensor.is_meta or tensor.numel() > LARGEST_CONSTANT:
            read = next((line_of(user) for user in node.users if line_of(user)), "")
            raise CaptureError(
                f"the model holds a constant tensor {name!r} outside its parameters and buffers{read}",
                f"every tensor of the model registered, or real and of at most {LARGEST_CONSTANT} elements",
                "register it with `register_buffer`; write `.detach()` for `.data`",
            )
        type_ = tensor_type(tensor)
        numbers = tuple(tensor.flatten().tolist())
        args = (numbers, type_.shape, TorchConstant(type_.dtype), RunDevice())
        self.leaf[node] = Ref(self.out.emit(CONSTANT, args, type_, "", wanted=node.name))
        self.constants.add(self.leaf[node].name)
        if tensor.numel() > 1:
            self.notes.append(f"{name} is a constant: the same numbers in every step")
        if name.startswith("lifted_tensor"):
            self.made.append(type_)

    def walk(self, graph: fx.Graph) -> list[Any]:
        """Read all calls of a graph; returns what its outputs stand for."""
        for node in graph.nodes:
            if node.op == "call_function":
                self._call(node)
            elif node.op == "output":
                outputs = list(node.args[0])
                if graph is self.exported.graph:
                    self.loss = self.memory.read(self.leaf[outputs[-1]].name)
                return [self.leaf.get(item) for item in outputs]
        return []

    def _call(self, node: fx.Node) -> None:
        value = node.meta.get("val")
        if node.target is operator.getitem and isinstance(node.args[0], fx.Node):
            self.leaf[node] = self.leaf[node.args[0]][node.args[1]]
        elif str(node.target) == NO_GRAD_REGION:
            enabled, body, *operands = node.args
            self._inline(node, body, operands, detached=not enabled)
        elif str(node.target) == AUTOCAST_REGION and not node.args[2]:
            self._inline(node, node.args[4], node.args[5:], detached=False)
        elif any(read.op == "get_attr" for read in node.all_input_nodes):  # a graph of its own
            raise unsupported(node)
        elif isinstance(value, int | torch.SymInt | torch.SymFloat | torch.SymBool | float):
            self.leaf[node] = traced_number(node, value)
        elif value is not None or writes_argument(node.target):
            self._append(node, value)

    def _inline(self, node: fx.Node, body: Any, operands: Sequence[Any], *, detached: bool) -> None:
        """A region of its own graph; where it is without gradients, its operands are detached first."""
        graph = getattr(body.graph.owning_module, str(body.target)).graph
        inner = [item for item in graph.nodes if item.op == "placeholder"]
        for placeholder, operand in zip(inner, operands, strict=True):
            leaf = self.leaf[operand] if isinstance(operand, fx.Node) else operand
            if isinstance(leaf, Ref) and detached and self.out.values[self.memory.read(leaf.name)].grad:
                leaf = self._detached(leaf.name, module_of(node))
            self.leaf[placeholder] = leaf
        self.leaf[node] = tuple(self.walk(graph))

    def _detached(self, name: str, module: str) -> Ref:
        args = (Ref(self.memory.read(name)),)
        op = self.out.add(Op("aten.detach.default", args, (), (), module), [self.out.types[name]], ["detach"])
        self.memory.views[op.name] = View(name, op, 0)
        self.memory.seen[op.name] = self.memory.version.get(self.memory.root(name), 0)
        return Ref(op.name)

    def _append(self, node: fx.Node, value: Any) -> None:
        target = str(node.target)
        if target == OPERATOR:
            self._opaque(node, value)
            return
        if "." not in target:  # no operator: a step of a transform such as vmap
            raise unsupported(node)
        args = self._tree(node.args)
        kwargs = tuple((key, self._tree(arg)) for key, arg in node.kwargs.items() if key != "pin_memory")
        if target == "aten.batch_norm.default" and args[5] and isinstance(args[3], Ref):
            self.leaf[node] = self._batch_norm(node, args)
            return
        if target == "aten.instance_norm.default" and args[5] and isinstance(args[3], Ref):
            raise tracked_instances(node)
        if target == "aten.cat.default":
            args = (self._with_elements(args[0], tensor_type(value)), *args[1:])
        if target == "aten.embedding.default" and len(args) > 4:
            args = args[:4]  # the same gradient, dense: a stored one has a layout
        if changes_nothing(node, target, value):
            self.leaf[node] = self.leaf[node.args[0]]  # type: ignore[index]
            return
        if writes_argument(node.target):
            self._write(node, Op(target, args, kwargs, (), module_of(node)))
            return
        several = isinstance(value, list | tuple)
        tensors = list(value) if several else [value]
        sizes = (size for tensor in tensors for size in tensor.shape if isinstance(size, torch.SymInt))
        if any(map(has_unbacked_symbol, sizes)):
            raise sized_by_data(node)
        wanted = [f"{node.name}_{i}" for i in range(len(tensors))] if several else [node.name]
        op = self.out.add(Op(target, args, kwargs, (), module_of(node)), [tensor_type(t) for t in tensors], wanted)
        refs = tuple(Ref(result.name) for result in op.results)
        self.leaf[node] = refs if several else refs[0]
        self._note_view(node, op, tensors)

    def _with_elements(self, parts: tuple[Ref, ...], whole: TensorType) -> tuple[Ref, ...]:
        """What `cat` joins, without the empty vectors that it passes over whatever the others' dims are (a cache that
        holds nothing yet)."""
        empty = TensorType((0,), whole.dtype)
        kept = tuple(part for part in parts if self.out.types[part.name] != empty)
        return kept or parts[:1]

    def _opaque(self, node: fx.Node, value: list[Tensor]) -> None:
        """A function kept whole: the op calls it with the arguments it was recorded with."""
        tensors: Any = node.args[0]
        index: Any = node.args[1]
        call, given = recorded(index), self._tree(tensors)
        if ":" not in call.target:
            self.leaf[node] = self.replay.read(call, [self.leaf[item] for item in tensors])
            return

        def leaf(arg: Any) -> Any:
            if isinstance(arg, Entries):
                raise CaptureError(
                    f"{call.target} is given a dict of tensors",
                    "tensors as arguments of their own",
                    f"pass {', '.join(map(str, arg.keys))} one by one",
                )
            return given[arg.index] if isinstance(arg, Slot) else self._tree(arg)

        op = Op(call.target, map_leaves(call.args, leaf), map_leaves(call.kwargs, leaf), (), module_of(node))
        made = self.out.add(op, [tensor_type(t) for t in value], [f"{node.name}_{i}" for i in range(len(value))])
        self.leaf[node] = tuple(Ref(result.name) for result in made.results)

    def _note_view(self, node: fx.Node, op: Op, tensors: list[Tensor]) -> None:
        source = node.args[0] if node.args else None
        if (
            not isinstance(source, fx.Node)
            or not isinstance(self.leaf.get(source), Ref)
            or not returns_view(node.target)
        ):
            return
        for index, tensor in enumerate(tensors):
            if shares_storage(source.meta["val"], tensor):
                name = op.results[index].name
                self.memory.views[name] = View(self.leaf[source].name, op, index)
                self.memory.seen[name] = self.memory.version.get(self.memory.root(name), 0)

    def _batch_norm(self, node: fx.Node, args: tuple[Any, ...]) -> Ref:
        """Training BatchNorm returns its new running statistics instead of writing them."""
        x, weight, bias, mean, var, _, momentum, eps, *_ = args
        types = [tensor_type(node.meta["val"]), self.out.types[mean.name], self.out.types[var.name]]
        wanted = [node.name, f"{node.name}_mean", f"{node.name}_var"]
        call = Op(BATCH_NORM, (x, weight, bias, mean, var, momentum, eps), (), (), module_of(node))
        op = self.out.add(call, types, wanted)
        for written, result in zip((node.args[3], node.args[4]), op.results[1:], strict=True):
            assert isinstance(written, fx.Node)
            self.memory.write(self.leaf[written].name, result.name)
        return Ref(op.results[0].name)

    def _write(self, node: fx.Node, op: Op) -> None:
        """An op that writes: its functional form, and from here on the written tensor means that result."""
        check_written(node, op)
        outputs = outputs_of(node)
        if outputs:
            self._write_out(node, op, outputs)
            return
        written = node.args[0]
        assert isinstance(written, fx.Node)
        name = self.leaf[written].name
        self._check_write(name, op)
        made = ""
        for target, args, kwargs, type_ in functional_form(op, self.out.types):
            given = (Ref(made), *args[1:]) if made else args
            made = self.out.emit(target, given, type_, op.module, kwargs=kwargs, wanted=node.name)
        self.memory.write(name, made)
        self.leaf[node] = Ref(name)

    def _write_out(self, node: fx.Node, op: Op, outputs: list[fx.Node]) -> None:
        """`out=`: buffers and values that take an op's results."""
        call, types = out_form(node, op)
        names = [self.leaf[item].name for item in outputs]
        for name in names:
            self._check_write(name, op)
        made = self.out.add(call, types, [f"{node.name}_{i}" for i in range(len(types))])
        for name, result in zip(names, made.results, strict=True):
            wanted = self.out.types[name]
            if result.type.shape != wanted.shape:
                raise CaptureError(
                    f"{op.target} in {op.module or 'the model'} gives `out=` another shape, {result.type}",
                    f"one of {wanted}",
                    "assign its result instead",
                )
            value = result.name
            if result.type.dtype != wanted.dtype:
                value = self.out.emit("aten.to.dtype", (Ref(value), TorchConstant(wanted.dtype)), wanted, op.module)
            self.memory.write(name, value)
        self.leaf[node] = Ref(names[0]) if len(names) == 1 else tuple(map(Ref, names))

    def _check_write(self, name: str, op: Op) -> None:
        where, root = op.module or "the model", self.memory.root(name)
        if root in self.constants:
            raise CaptureError(
                f"{op.target} in {where} writes to a tensor that is no buffer of the model",
                "state of the model and its loss in buffers of the model",
                "register it with `register_buffer`; a loss that remembers something belongs into the model",
            )
        if any(root == parameter.name for parameter in self.parameters):
            raise CaptureError(
                f"{op.target} in {where} writes to the parameter {root!r}",
                "a forward that leaves parameters alone",
                "make it a buffer, or write to a copy",
            )
        while name in self.memory.views:
            view = self.memory.views[name]
            if view.op.target == "aten.detach.default" and self.out.values[view.base].grad:
                raise CaptureError(
                    f"{op.target} in {where} writes to {view.base!r} through detach, unseen by autograd",
                    "writes that autograd can follow",
                    "write to a copy: `x.detach().clone()`",
                )
            name = view.base

    def _tree(self, tree: Any) -> Any:
        if isinstance(tree, list | tuple):
            return tuple(self._tree(item) for item in tree)
        if isinstance(tree, fx.Node):
            return self._leaf_of(tree)
        if isinstance(tree, torch.device):
            return RunDevice()
        if isinstance(tree, torch.dtype | torch.layout | torch.memory_format):
            return TorchConstant(str(tree).removeprefix("torch."))
        return tree

    def _leaf_of(self, node: fx.Node) -> Any:
        leaf = self.leaf[node]
        if isinstance(leaf, Unknown):
            raise unknown_number(module_of(node) or "the model", leaf)
        if isinstance(leaf, tuple):
            return tuple(Ref(self.memory.read(item.name)) for item in leaf)
        return Ref(self.memory.read(leaf.name)) if isinstance(leaf, Ref) else leaf

    def finish(self, notes: Iterable[str], by_key: bool) -> Flat:
        now = {buffer.name: self.memory.read(buffer.name) for buffer in self.buffers}
        updates = tuple((name, value) for name, value in now.items() if name != value)
        ops = live(self.out.ops, {self.loss, *(value for _, value in updates)})
        ops, about = keyed(ops, self.out.values) if by_key else (ops, ())
        used = {name for op in ops for name in op.uses()}
        parameters = tuple(parameter for parameter in self.parameters if parameter.name in used)
        found = (*notes, *self.notes, *about)
        made = tuple(self.made)
        return Flat(tuple(self.inputs), parameters, self.buffers, tuple(ops), updates, self.loss, found, made)
