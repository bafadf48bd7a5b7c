"""Every private torch name that meshwright uses, behind one door; each has a contract test.

Supported: torch 2.11 to 2.13.
"""

from __future__ import annotations

import logging
import operator
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, redirect_stderr
from functools import partial
from io import StringIO
from typing import Any

import torch
from torch import Tensor
from torch._dispatch.python import enable_python_dispatcher
from torch._library.custom_ops import CustomOpDef
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.fx import GraphModule
from torch.fx._lazy_graph_module import _use_lazy_graph_module
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, ShapeEnv, free_unbacked_symbols
from torch.utils._python_dispatch import TorchDispatchMode

FakeMode = FakeTensorMode

DATA_DEPENDENT = (GuardOnDataDependentSymNode, DataDependentOutputException)
"""What torch.export raises where Python asks for a tensor's value."""
UNTOLD_SHAPES = (*DATA_DEPENDENT, DynamicOutputShapeException)
"""What an operator raises on fake tensors where its results' shapes depend on values."""


def fake_mode() -> FakeTensorMode:
    """A mode under which tensors have shapes and dtypes but no storage."""
    return FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)


def fake_tensor(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    mode: FakeTensorMode,
    device: str = "cpu",
    lies: torch.memory_format = torch.contiguous_format,
) -> Tensor:
    with mode:
        return torch.empty(shape, dtype=dtype, device=device, memory_format=lies)


def fake_parameter(shape: tuple[int, ...], dtype: torch.dtype, mode: FakeTensorMode, requires_grad: bool) -> Tensor:
    """A fake tensor that is an `nn.Parameter`. Making one of a tensor that exists would detach it first, at twice the
    time."""
    made = fake_tensor(shape, dtype, mode).requires_grad_(requires_grad)
    made._is_param = True
    return made


def fake_like(value: Any, sizes: list[int], strides: list[int]) -> Tensor:
    """A fake tensor of the same mode, dtype and device as another one."""
    with value.fake_mode:
        return torch.empty_strided(sizes, strides, dtype=value.dtype, device=value.device)


def symbolic_kernels() -> AbstractContextManager[None]:
    """Inside an operator's fake kernel: let composite operators see sizes that are symbols."""
    return enable_python_dispatcher()


@contextmanager
def without_onednn() -> Iterator[None]:
    """Inside, recurrent layers run as plain ops. `torch.backends.mkldnn.flags` would also set what this build may not
    have, and warn."""
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)


def trace_joint(function: Callable[..., Any], inputs: list[Tensor], mode: AbstractContextManager[Any]) -> GraphModule:
    """The ATen graph of `function(*inputs)`, calls to `torch.autograd.grad` inside it included."""
    # Recurrent layers are written out in plain ops: the fused CPU kernel's backward cannot be run from a trace.
    # Most of these graphs are looked at only: code is written for those that run.
    with mode, without_onednn(), _use_lazy_graph_module(True):
        return with_real_statistics(make_fx(function)(*inputs))


def with_real_statistics(traced: GraphModule) -> GraphModule:
    """Attention on a CPU keeps its logarithms of sums in double where queries are; torch 2.11's fake says in single."""
    for node in traced.graph.nodes:
        if "_scaled_dot_product_flash_attention_for_cpu.default" not in str(node.target):
            continue
        out, statistic = node.meta["val"]
        node.meta["val"] = (out, statistic.to(torch.promote_types(statistic.dtype, out.dtype)))
        for part in node.users:
            if part.target is operator.getitem and part.args[1] == 1:
                part.meta["val"] = node.meta["val"][1]
    return traced


def mutating(traced: GraphModule) -> list[str]:
    """The ops of a traced graph that write to an argument, by name."""
    return [str(node.target) for node in traced.graph.nodes if writes_argument(node.target)]


def functional(traced: GraphModule, inputs: list[Tensor], mode: AbstractContextManager[Any]) -> GraphModule:
    """The same graph without ops that write to an argument; a composite op may trace to some (`gru_cell`)."""
    if not mutating(traced):
        return traced
    with mode:
        return make_fx(torch.func.functionalize(traced, remove="mutations"))(*inputs)


def symbolic_value(symbol: Any, batch: int) -> int | None:
    """The value of a SymInt or SymFloat that depends on the batch alone, at this batch; None if it is not whole."""
    expression = symbol.node.expr
    found = float(expression.subs(dict.fromkeys(expression.free_symbols, batch)))
    return int(found) if found.is_integer() else None


def has_unbacked_symbol(symbol: Any) -> bool:
    """Whether a SymInt stands for something that only the data would tell."""
    return bool(free_unbacked_symbols(symbol))


def is_fake(tensor: Tensor) -> bool:
    return isinstance(tensor, FakeTensor)


@contextmanager
def without_reports() -> Iterator[None]:
    """While a first export is tried: torch prints the graph so far when it fails, and logs where it looked."""
    loggers = [logging.getLogger(name) for name in ("torch.fx.experimental.symbolic_shapes", "torch.export._trace")]
    before = [logger.disabled for logger in loggers]
    printed = StringIO()
    try:
        for logger in loggers:
            logger.disabled = True
        with redirect_stderr(printed):
            yield
        sys.stderr.write(printed.getvalue())  # it went well: what the model itself printed
    finally:
        for logger, state in zip(loggers, before, strict=True):
            logger.disabled = state


def argument_names(target: Any) -> tuple[str, ...]:
    """The names of an operator's arguments, in order."""
    schema = getattr(target, "_schema", None)
    return () if schema is None else tuple(argument.name for argument in schema.arguments)


def shares_storage(first: Any, second: Tensor) -> bool:
    """Whether two captured tensors are the same memory; fakes have storage objects, though nothing is in them."""
    return isinstance(first, Tensor) and storage_key(first) == storage_key(second)


def returns_view(target: Any) -> bool:
    """Whether an operator's schema says that its results may share its first argument's memory."""
    schema = getattr(target, "_schema", None)
    if schema is None or not schema.arguments:
        return False
    alias = schema.arguments[0].alias_info
    return alias is not None and not alias.is_write


def writes_argument(target: Any) -> bool:
    """Whether an operator's schema says that it writes to an argument."""
    schema = getattr(target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


def written_names(target: Any) -> tuple[str, ...]:
    """The arguments that an operator writes to, by name."""
    schema = getattr(target, "_schema", None)
    arguments = schema.arguments if schema is not None else []
    return tuple(a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write)


def functional_overload(target: Any) -> Any | None:
    """The operator that makes what `target` writes, in place (`pow_.Scalar`) or to `out=`; None where there is none."""
    kinds = [str(argument.type) for argument in target._schema.arguments if not argument.is_out]
    name = target._schema.name.partition("::")[2]
    packet = getattr(getattr(torch.ops, target.namespace), name.removesuffix("_"), None)
    overloads = packet.overloads() if packet is not None and hasattr(packet, "overloads") else []
    for overload in sorted(overloads, key=lambda known: known != (target._schema.overload_name or "default")):
        found = getattr(packet, overload)
        if not found._schema.is_mutable and [str(argument.type) for argument in found._schema.arguments] == kinds:
            return found
    return None


def argument_position(target: Any, name: str) -> int | None:
    """Where an operator takes the argument of this name; None where it has none such."""
    names = argument_names(target)
    return names.index(name) if name in names else None


def storage_key(tensor: Tensor) -> int:
    """What tensors that share memory have in common, on the meta device too, as long as one of them lives."""
    return int(tensor.untyped_storage()._cdata)


def written_arguments(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """The arguments that an operator writes to."""
    given = list(zip(function._schema.arguments, args, strict=False))
    given += [(argument, kwargs[argument.name]) for argument in function._schema.arguments if argument.name in kwargs]
    found = [value for argument, value in given if argument.alias_info is not None and argument.alias_info.is_write]
    return [value for value in found if isinstance(value, Tensor)]


class RecordingMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Calls `note(operator, args, kwargs, result)` after every operator that runs inside."""

    def __init__(self, note: Callable[..., None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._note = note

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self._note(func, args, kwargs or {}, result)
        return result


def own_store(prefix: str) -> Any:
    """The job's store, under a prefix, over a connection of its own where it has connections: threads may use it."""
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]
    from torch.distributed.distributed_c10d import _get_default_store

    store: Any = _get_default_store()
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return PrefixStore(prefix, store.clone() if hasattr(store, "clone") else store)


def storage_place(file: str, offset: int, length: int) -> Any:
    """Where DCP's reader finds a piece of a tensor: a file of the checkpoint's folder, and which of its bytes."""
    from torch.distributed.checkpoint.filesystem import _StorageInfo

    return _StorageInfo(file, offset, length)


_FUSED: dict[Any, Callable[..., Any]] = {}


def fuse_when_compiled(operators: Mapping[Any, Callable[..., Any]]) -> None:
    """Operators of our own, each with a function of ops that inductor knows: it fuses them instead of calling ours."""
    _FUSED.update(operators)


def compile_boxed(module: GraphModule, images: bool = False) -> Callable[[list[Tensor]], tuple[Any, ...]]:
    """A traced graph, compiled by inductor; it takes its arguments in a list, which it empties as it goes. What was
    compiled before, in another process too, is found again. `images`: its convolutions take images that lie channels
    last, and make such."""
    from torch._guards import TracingContext, tracing
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.decomposition import select_decomp_table
    from torch._inductor.fx_passes.joint_graph import joint_graph_passes
    from torch._inductor.virtualized import V

    fakes = [node.meta["val"] for node in module.graph.nodes if node.op == "placeholder"]
    mode = next(fake.fake_mode for fake in fakes)
    with mode, torch.no_grad():
        lowered = make_fx(module, decomposition_table=select_decomp_table() | _FUSED)(*fakes)
    with V.set_fake_mode(mode), torch.no_grad():
        # What torch.compile runs before it cuts: a loss's gradient is not written out full of zeros first.
        lowered = joint_graph_passes(lowered)
    output = lowered.graph.output_node()
    output.args = (tuple(output.args[0]),)
    # Results keep the strides they were traced with: the other half was traced with these.
    output.meta["user_visible_output_idxs"] = list(range(len(output.args[0])))
    lowered.recompile()
    # Without a tracing context nothing is looked up in, or goes to, the compiler's cache on disk.
    options = config.patch(force_layout_optimization=images or config.force_layout_optimization)
    with options, tracing(TracingContext(mode)), V.set_fake_mode(mode), torch.no_grad():
        compiled = compile_fx_inner(lowered, fakes, is_inference=True)

    def run(box: list[Tensor]) -> tuple[Any, ...]:
        return tuple(compiled(box))

    return run


def bare_mesh(size: int) -> Any:
    """A DeviceMesh of CPU devices without process groups: whatever communicates over it raises."""
    from torch.distributed.device_mesh import DeviceMesh

    return DeviceMesh("cpu", list(range(size)), _init_backend=False, _rank=0)


def as_dtensor(local: Tensor, mesh: Any, placement: Any) -> Any:
    """A DTensor on a mesh of one axis; nothing is sent to make it."""
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(local, mesh, [placement], run_check=False)


def dtensor_like(local: Tensor, like: Any) -> Any:
    """A DTensor around another local tensor, of the same mesh, placements and global shape; far cheaper than
    `from_local`."""
    return type(like)(local, like._spec, requires_grad=False)


def local_tensor(tensor: Any) -> Tensor:
    """A DTensor's own piece, with no way for gradients: far cheaper than `to_local`."""
    found: Tensor = tensor._local_tensor
    return found


def has_step_hooks(optimizer: Any, ours: int = 0) -> bool:
    """Whether somebody besides us is called around this optimizer's steps. ours: how many hooks we have before it, and
    as many after it."""
    from torch.optim import optimizer as module

    own = (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks)
    every = (module._global_optimizer_pre_hooks, module._global_optimizer_post_hooks)
    return any(len(hooks) > ours for hooks in own) or any(every)


def compile_questions() -> list[tuple[Any, str]]:
    """Functions, by holder and name, that tell code whether it is being compiled or exported.

    Dynamo keeps tables of them by identity, made when they are first needed (`torch.cond` compiles its branches). They
    are made here: before any is replaced.
    """
    import torch._dynamo
    from torch._dynamo.trace_rules import get_torch_obj_rule_map
    from torch._dynamo.variables.torch import TorchInGraphFunctionVariable, tracing_state_functions

    for table in (get_torch_obj_rule_map, tracing_state_functions, TorchInGraphFunctionVariable._get_handlers):
        table()
    names = ("is_compiling", "is_dynamo_compiling", "is_exporting")
    found: list[tuple[Any, str]] = [(torch.compiler, name) for name in names]
    return [*found, (torch.jit, "is_tracing"), (torch._dynamo, "is_compiling")]


def as_plain_tensors() -> AbstractContextManager[None]:
    """Functions of torch take subclasses of Tensor for what they are, and give plain tensors."""
    found: AbstractContextManager[None] = torch._C.DisableTorchFunctionSubclass()
    return found


def writes_seen(tensor: Tensor) -> int:
    """A number that grows with every write in place, through whichever view."""
    return int(tensor._version)


def storage_users(tensor: Tensor) -> int:
    """How many refer to a tensor's memory: grows with every view, falls when one goes."""
    return int(torch._C._storage_Use_Count(tensor.untyped_storage()._cdata))


def tensor_spec(whole: Tensor, mesh: Any) -> Any:
    """What `register_sharding` hands to a user's function in a tensor's place."""
    from torch.distributed.tensor import Replicate

    return as_dtensor(whole, mesh, Replicate())._spec


def placement_kind(placement: Any) -> tuple[str, int]:
    """`shard` with its dim, `replicate`, `sum`; anything else under a name of its own."""
    from torch.distributed.tensor import Partial, Replicate, Shard

    if type(placement) is Shard:
        return "shard", placement.dim
    if type(placement) is Replicate:
        return "replicate", 0
    is_sum = type(placement) is Partial and placement.reduce_op == "sum"
    return ("sum", 0) if is_sum else (type(placement).__name__, 0)


def dtensor_is_loaded() -> bool:
    """Whether anyone in this process can have registered a sharding with DTensor."""
    return "torch.distributed.tensor" in sys.modules


def registered_sharding(operator: Any) -> Callable[..., Any] | None:
    """The function that a user gave to DTensor's `register_sharding` for this operator."""
    from torch.distributed.tensor import DTensor

    held: Any = DTensor._op_dispatcher.sharding_propagator.op_strategy_funcs.get(operator)
    is_users = isinstance(held, partial) and held.func.__module__.endswith("_register_sharding")
    return held.args[0] if is_users else None


def tensor_counts(operator: Any) -> tuple[int, int, int | None] | None:
    """The fewest and the most tensors that an operator takes, and how many it returns (None for a list); None where it
    has no schema or takes a list of tensors."""
    schema = getattr(operator, "_schema", None)
    if schema is None:
        return None
    kinds = [str(argument.type) for argument in schema.arguments]
    if any("Tensor" in kind and kind not in ("Tensor", "Optional[Tensor]") for kind in kinds):
        return None
    made = [str(result.type) for result in schema.returns]
    least, optional = kinds.count("Tensor"), kinds.count("Optional[Tensor]")
    return least, least + optional, len(made) if set(made) <= {"Tensor"} else None


def own_buffers(module: Any) -> dict[str, Tensor | None]:
    """A module's own buffers by name, the dict itself: what is assigned to `module.name` is put there."""
    found: dict[str, Tensor | None] = module._buffers
    return found


def forward_hooks(module: Any) -> tuple[dict[int, Any], dict[int, Any]]:
    """A module's forward pre-hooks and forward hooks, the dicts themselves."""
    return module._forward_pre_hooks, module._forward_hooks


def module_hooks(module: Any) -> tuple[Any, ...]:
    """All hooks that a module has, around its forward and its backward."""
    held = module._forward_pre_hooks, module._forward_hooks, module._backward_pre_hooks, module._backward_hooks
    return tuple(hook for hooks in held if hooks for hook in hooks.values())


def backward_hooks(module: Any) -> bool:
    """Whether a module has hooks that see, and may change, gradients."""
    return bool(module._backward_hooks or module._backward_pre_hooks)


def global_hooks() -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Hooks that were registered for all modules: around their forward, and around their backward."""
    from torch.nn.modules import module

    forward = module._global_forward_pre_hooks | module._global_forward_hooks
    backward = module._global_backward_pre_hooks | module._global_backward_hooks
    return tuple(forward.values()), tuple(backward.values())


def norms_of(tensors: list[Tensor]) -> list[Tensor]:
    """The norm of each, in few kernels."""
    return list(torch._foreach_norm(tensors))


def gradient_hooks(tensor: Tensor) -> bool:
    """Whether a parameter has hooks that see, and may change, its gradient."""
    known = (tensor._backward_hooks, getattr(tensor, "_post_accumulate_grad_hooks", None))
    return any(known)


def modules_with_ops() -> list[str]:
    """Modules, other than torch's and ours, that hold definitions of operators: whoever imports them has these."""
    kinds = torch.library.Library, CustomOpDef
    found = []
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] not in ("__main__", "torch", "meshwright"):
            held = list(getattr(module, "__dict__", {}).values())
            found += [name] if any(issubclass(type(one), kinds) for one in held) else []
    return found


ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
"""Environment variables with which users set the allocator."""


def expandable_segments() -> bool:
    """From now on the GPU's allocator takes memory in segments that grow, which hardly have holes. What it has stays as
    it is. Returns False, and changes nothing, where the user has set the allocator in the environment."""
    if any(os.environ.get(name) for name in ALLOCATOR):
        return False
    change = getattr(torch._C, "_accelerator_setAllocatorSettings", None) or torch.cuda.memory._set_allocator_settings
    change("expandable_segments:True")
    return True


def profiler_records() -> bool:
    """Whether a torch profiler is recording in this thread."""
    return bool(torch.autograd._profiler_enabled())  # type: ignore[attr-defined]
