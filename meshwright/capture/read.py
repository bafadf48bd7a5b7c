"""From an exported graph to a flat list of Ops: the first, uncut form of a Program.

Asserts are dropped, regions without gradient are inlined, and ops that write in place become functional ones;
a buffer that was written ends up as an update.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from meshwright.capture.alias import Memory, View
from meshwright.capture.answers import traced_line
from meshwright.capture.inplace import functional_form
from meshwright.capture.opaque import OPERATOR, Slot, recorded
from meshwright.capture.program import Op, Parameter, Ref, RunDevice, TensorType, TorchConstant, Value, map_leaves
from meshwright.capture.random import keyed
from meshwright.capture.replay import Replay
from meshwright.capture.sizes import BatchFloat, Size, fit_size
from meshwright.errors import CaptureError
from meshwright.torch_compat import has_unbacked_symbol, is_fake, returns_view, shares_storage, symbolic_value

BATCH_NORM = "meshwright.capture.functional:batch_norm"
CONSTANT = "meshwright.capture.functional:constant"
LARGEST_CONSTANT = 4096
NO_GRAD_REGION = "wrap_with_set_grad_enabled"


@dataclass(frozen=True, slots=True)
class Flat:
    """A captured forward before cutting. Parameters and buffers stand under their first name.

    made: the types of constants that the forward made from Python's numbers while it was captured.
    """

    inputs: tuple[Value, ...]
    parameters: tuple[Parameter, ...]
    buffers: tuple[Parameter, ...]
    ops: tuple[Op, ...]
    updates: tuple[tuple[str, str], ...]
    loss: str
    notes: tuple[str, ...] = ()
    made: tuple[TensorType, ...] = ()


@dataclass(frozen=True, slots=True)
class _Unknown:
    """A number that only the data would tell, or that is no polynomial in the batch; fine if only asserts read it."""

    node: fx.Node
    of_data: bool


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
        self.values: dict[str, Value] = {}
        self.types: dict[str, TensorType] = {}
        self.ops: list[Op] = []
        self.inputs: list[Value] = []
        self.notes: list[str] = []
        self.made: list[TensorType] = []
        self.taken: dict[str, int] = {}
        self.memory = Memory(self.types, self._emit)
        self.replay = Replay(self.ops, self.memory, self._add)
        self.parameters = _records(_first_names(model.named_parameters(remove_duplicate=False)))
        self.buffers = _records(_first_names(model.named_buffers(remove_duplicate=False)))
        for entry in (*self.parameters, *self.buffers):
            grad = entry in self.parameters and entry.trainable
            self._define(Value(entry.name, entry.type, grad))
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
                value = Value(node.name.removeprefix("batch_"), _type(node.meta["val"]))
                self.inputs.append(value)
                self.leaf[node] = Ref(self._define(value))
            elif node.users:
                self._constant(node, spec.target or node.name)

    def _constant(self, node: fx.Node, target: str) -> None:
        """A tensor the model holds or makes outside its parameters and buffers: kept as literal numbers."""
        tensor, name = self.exported.constants.get(target), target.removeprefix("model.")
        if not isinstance(tensor, Tensor) or is_fake(tensor) or tensor.is_meta or tensor.numel() > LARGEST_CONSTANT:
            raise CaptureError(
                f"the model holds a constant tensor {name!r} outside its parameters and buffers",
                f"every tensor of the model registered, or real and of at most {LARGEST_CONSTANT} elements",
                "register it with `register_buffer`",
            )
        type_ = _type(tensor)
        numbers = tuple(tensor.flatten().tolist())
        args = (numbers, type_.shape, TorchConstant(type_.dtype), RunDevice())
        self.leaf[node] = Ref(self._emit(CONSTANT, args, type_, "", wanted=node.name))
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
            self._inline(node)
        elif isinstance(value, int | torch.SymInt | torch.SymFloat | torch.SymBool | float):
            self.leaf[node] = _number(node, value)
        elif value is not None:
            self._append(node, value)

    def _inline(self, node: fx.Node) -> None:
        """A region under set_grad_enabled; without gradients its operands are detached first."""
        enabled, body, *operands = node.args
        assert isinstance(body, fx.Node)
        graph = getattr(body.graph.owning_module, str(body.target)).graph
        inner = [item for item in graph.nodes if item.op == "placeholder"]
        for placeholder, operand in zip(inner, operands, strict=True):
            leaf = self.leaf[operand] if isinstance(operand, fx.Node) else operand
            if isinstance(leaf, Ref) and not enabled and self.values[self.memory.read(leaf.name)].grad:
                leaf = self._detached(leaf.name, _module(node))
            self.leaf[placeholder] = leaf
        self.leaf[node] = tuple(self.walk(graph))

    def _detached(self, name: str, module: str) -> Ref:
        args = (Ref(self.memory.read(name)),)
        op = self._add(Op("aten.detach.default", args, (), (), module), [self.types[name]], ["detach"])
        self.memory.views[op.name] = View(name, op, 0)
        self.memory.seen[op.name] = self.memory.version.get(self.memory.root(name), 0)
        return Ref(op.name)

    def _append(self, node: fx.Node, value: Any) -> None:
        target = str(node.target)
        if target == OPERATOR:
            self._opaque(node, value)
            return
        args = self._tree(node.args)
        kwargs = tuple((key, self._tree(arg)) for key, arg in node.kwargs.items() if key != "pin_memory")
        if target == "aten.batch_norm.default" and args[5] and isinstance(args[3], Ref):
            self.leaf[node] = self._batch_norm(node, args)
            return
        if _changes_nothing(node, target, value):
            self.leaf[node] = self.leaf[node.args[0]]  # type: ignore[index]
            return
        if _writes(target):
            self._write(node, Op(target, args, kwargs, (), _module(node)))
            return
        several = isinstance(value, list | tuple)
        tensors = list(value) if several else [value]
        wanted = [f"{node.name}_{i}" for i in range(len(tensors))] if several else [node.name]
        op = self._add(Op(target, args, kwargs, (), _module(node)), [_type(t) for t in tensors], wanted)
        refs = tuple(Ref(result.name) for result in op.results)
        self.leaf[node] = refs if several else refs[0]
        self._note_view(node, op, tensors)

    def _opaque(self, node: fx.Node, value: list[Tensor]) -> None:
        """A function kept whole: the op calls it with the arguments it was recorded with."""
        tensors: Any = node.args[0]
        index: Any = node.args[1]
        call, given = recorded(index), self._tree(tensors)
        if ":" not in call.target:
            self.leaf[node] = self.replay.read(call, [self.leaf[item] for item in tensors])
            return

        def leaf(arg: Any) -> Any:
            return given[arg.index] if isinstance(arg, Slot) else self._tree(arg)

        op = Op(call.target, map_leaves(call.args, leaf), map_leaves(call.kwargs, leaf), (), _module(node))
        made = self._add(op, [_type(t) for t in value], [f"{node.name}_{i}" for i in range(len(value))])
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
        types = [_type(node.meta["val"]), self.types[mean.name], self.types[var.name]]
        wanted = [node.name, f"{node.name}_mean", f"{node.name}_var"]
        call = Op(BATCH_NORM, (x, weight, bias, mean, var, momentum, eps), (), (), _module(node))
        op = self._add(call, types, wanted)
        for written, result in zip((node.args[3], node.args[4]), op.results[1:], strict=True):
            assert isinstance(written, fx.Node)
            self.memory.write(self.leaf[written].name, result.name)
        return Ref(op.results[0].name)

    def _write(self, node: fx.Node, op: Op) -> None:
        """An in-place op: its functional form, and from here on the written tensor means that result."""
        written = node.args[0]
        assert isinstance(written, fx.Node)
        name = self.leaf[written].name
        self._check_write(name, op)
        made = ""
        for target, args, kwargs, type_ in functional_form(op, self.types):
            given = (Ref(made), *args[1:]) if made else args
            made = self._emit(target, given, type_, op.module, kwargs=kwargs, wanted=node.name)
        self.memory.write(name, made)
        self.leaf[node] = Ref(name)

    def _check_write(self, name: str, op: Op) -> None:
        where, root = op.module or "the model", self.memory.root(name)
        if any(root == parameter.name for parameter in self.parameters):
            raise CaptureError(
                f"{op.target} in {where} writes to the parameter {root!r}",
                "a forward that leaves parameters alone",
                "make it a buffer, or write to a copy",
            )
        while name in self.memory.views:
            view = self.memory.views[name]
            if view.op.target == "aten.detach.default" and self.values[view.base].grad:
                raise CaptureError(
                    f"{op.target} in {where} writes to {view.base!r} through detach, unseen by autograd",
                    "writes that autograd can follow",
                    "write to a copy: `x.detach().clone()`",
                )
            name = view.base

    def _emit(
        self, target: str, args: tuple[Any, ...], type_: TensorType, module: str,
        kwargs: tuple[tuple[str, Any], ...] = (), wanted: str = "",
    ) -> str:  # fmt: skip
        wanted = wanted or target.split(".")[1]
        return self._add(Op(target, args, kwargs, (), module), [type_], [wanted]).results[0].name

    def _add(self, op: Op, types: list[TensorType], wanted: list[str]) -> Op:
        flows = _passes_gradient(op.target) and any(self.values[name].grad for name in op.uses())
        results = []
        for type_, name in zip(types, wanted, strict=True):
            stem = name
            while name in self.values:
                self.taken[stem] = self.taken.get(stem, 0) + 1
                name = f"{stem}_{self.taken[stem]}"
            value = Value(name, type_, flows and type_.has_gradient)
            results.append(value)
            self._define(value)
        made = Op(op.target, op.args, op.kwargs, tuple(results), op.module)
        self.ops.append(made)
        return made

    def _define(self, value: Value) -> str:
        self.values[value.name], self.types[value.name] = value, value.type
        return value.name

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
        if isinstance(leaf, _Unknown):
            raise _unknown_number(_module(node) or "the model", leaf)
        if isinstance(leaf, tuple):
            return tuple(Ref(self.memory.read(item.name)) for item in leaf)
        return Ref(self.memory.read(leaf.name)) if isinstance(leaf, Ref) else leaf

    def finish(self, notes: Iterable[str], by_key: bool) -> Flat:
        now = {buffer.name: self.memory.read(buffer.name) for buffer in self.buffers}
        updates = tuple((name, value) for name, value in now.items() if name != value)
        ops = _live(self.ops, {self.loss, *(value for _, value in updates)})
        ops, about = keyed(ops, self.values) if by_key else (ops, ())
        used = {name for op in ops for name in op.uses()}
        parameters = tuple(parameter for parameter in self.parameters if parameter.name in used)
        found = (*notes, *self.notes, *about)
        made = tuple(self.made)
        return Flat(tuple(self.inputs), parameters, self.buffers, tuple(ops), updates, self.loss, found, made)


def _live(ops: list[Op], needed: set[str]) -> list[Op]:
    """Ops that the needed values follow from."""
    kept = []
    for op in reversed(ops):
        if any(value.name in needed for value in op.results):
            kept.append(op)
            needed.update(op.uses())
    return kept[::-1]


def _changes_nothing(node: fx.Node, target: str, value: Any) -> bool:
    """A cast to the dtype a tensor already has hands on the tensor itself."""
    source = node.args[0].meta.get("val") if node.args and isinstance(node.args[0], fx.Node) else None
    if not target.startswith(("aten.to.", "aten.alias.", "aten.type_as.")) or not isinstance(source, Tensor):
        return False
    return source.dtype == value.dtype and shares_storage(source, value)


def _writes(target: str) -> bool:
    namespace, name, *_ = target.split(".")
    return namespace == "aten" and name.endswith("_") and not name.endswith("__")


def _passes_gradient(target: str) -> bool:
    """False for ops that read a tensor for its shape or cut the gradient."""
    name = target.split(".")[1] if target.count(".") > 1 else target
    return not (name.endswith("_like") or name.startswith("new_") or name in ("detach", "histc", "bernoulli"))


def _first_names(named: Iterable[tuple[str, Tensor]]) -> dict[int, tuple[Tensor, list[str]]]:
    found: dict[int, tuple[Tensor, list[str]]] = {}
    for name, tensor in named:
        found.setdefault(id(tensor), (tensor, []))[1].append(name)
    return found


def _records(found: dict[int, tuple[Tensor, list[str]]]) -> tuple[Parameter, ...]:
    """Equal types are one object: a deep model has few, and they can be counted quickly."""
    types: dict[TensorType, TensorType] = {}

    def shared(tensor: Tensor) -> TensorType:
        type_ = _type(tensor)
        return types.setdefault(type_, type_)

    return tuple(
        Parameter(names[0], shared(tensor), tensor.requires_grad, tuple(names[1:])) for tensor, names in found.values()
    )


def _type(tensor: Tensor) -> TensorType:
    return TensorType(tuple(_size(size) for size in tensor.shape), str(tensor.dtype).removeprefix("torch."))


def _number(node: fx.Node, value: Any) -> Any:
    if isinstance(value, int | float):
        return value
    if isinstance(value, torch.SymInt | torch.SymFloat) and not has_unbacked_symbol(value):
        found = fit_size(lambda batch: symbolic_value(value, batch))
        if found is not None and isinstance(value, torch.SymFloat):
            return BatchFloat(found.coefficients)
        if found is not None or isinstance(value, torch.SymInt):
            return _size(value)
    of_data = not isinstance(value, torch.SymInt | torch.SymFloat) or has_unbacked_symbol(value)
    return _Unknown(node, of_data)


def _unknown_number(where: str, number: _Unknown) -> CaptureError:
    line = traced_line(number.node.meta.get("stack_trace") or "")
    if number.of_data:
        return CaptureError(
            f"{where} uses a number that depends on the data ({number.node.target}){line}",
            "sizes and numbers that follow from the shapes",
            "keep it as a tensor, without `.item()`",
        )
    return CaptureError(
        f"{where} uses a number that is no polynomial in the batch ({number.node.target}){line}",
        "numbers such as the batch size itself, or multiples of it",
        "divide by the batch size instead of multiplying by a fraction of it",
    )


def _size(size: Any) -> Size:
    if isinstance(size, int):
        return size
    if has_unbacked_symbol(size):
        raise CaptureError(
            "a tensor's size depends on the data", "sizes that follow from the shapes", "pad it to a fixed size"
        )
    found = fit_size(lambda batch: symbolic_value(size, batch))
    if found is None:
        raise CaptureError(
            f"a tensor has size {size}, where the symbol is the batch",
            "sizes that are polynomials in the batch",
            "capture at the batch you train with; a batch-dependent shape of this kind is not supported",
        )
    return found.coefficients[0] if not any(found.coefficients[1:]) else found


def _module(node: fx.Node) -> str:
    stack = node.meta.get("nn_module_stack") or {}
    paths = [str(path) for path, _ in stack.values()] if isinstance(stack, dict) else []
    return paths[-1].removeprefix("model").removeprefix(".") if paths and "_empty" not in paths[-1] else ""
