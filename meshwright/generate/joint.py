"""The joint graph of a sharded segment: forward and backward as one ATen graph, traced on fakes.

Its storages have names that do not depend on how an op happens to be traced: a result of one of the segment's ops
has that value's name; what else the op makes is `op~0`, `op~1` in order (norm statistics, attention's logarithms).
What is computed for backward alone, from no gradient, is `backward~0` and so on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, fx

from meshwright.caches import CACHES
from meshwright.capture.program import Op, SegmentGraph, Value
from meshwright.capture.targets import call
from meshwright.cost.traced.storage import base, depends_on, is_part, is_view, outputs_of, producer
from meshwright.generate.expert_rows import fix_expert_rows
from meshwright.generate.gpu_norm import rms_norm_as_on_gpu
from meshwright.generate.strides import in_order, memory_format
from meshwright.generate.writes import without_writes
from meshwright.profile.attention import attention_kernel
from meshwright.torch_compat import fake_mode, fake_tensor, trace_joint

ATTENTION = "aten.scaled_dot_product_attention.default"
RMS_NORM = "aten.rms_norm.default"

NATIVE_NORM, CUDNN_NORM = "aten.native_batch_norm_backward.default", "aten.cudnn_batch_norm_backward.default"


@dataclass(frozen=True, slots=True, eq=False)
class Joint:
    """forward_outputs: how many of the graph's outputs are forward's (results, then buffers' new values).

    own: placeholders that backward is handed anew (parameters, gradients). tangents: the gradients among them.
    names: every storage computed from no gradient, by node, under the name that a plan uses.
    """

    graph: SegmentGraph
    module: fx.GraphModule
    forward_outputs: int
    grad_inputs: tuple[str, ...]
    grad_params: tuple[str, ...]
    own: frozenset[str]
    tangents: frozenset[str]
    names: dict[fx.Node, str]


@CACHES.memoized(maxsize=256)
def trace(graph: SegmentGraph, device: str = "cpu", kernels: str = "", images: bool = False) -> Joint:
    """`graph`: a sharded segment with local sizes.

    `kernels="cuda"` traces on CPU fakes what a GPU would run, for planning where there is none. `images`: what it is
    given in four dims lies channels last (`strides`).
    """
    arguments = graph.arguments()
    grad_inputs = tuple(value.name for value in graph.inputs if value.grad)
    grad_params = tuple(value.name for value in graph.params if value.grad)
    outputs = grad_outputs(graph)
    mode = fake_mode()
    names = [value.name for value in arguments]
    place = torch.device(device)
    made = [value.name for op in graph.ops for value in op.results]
    known, handed_on = graph.values(), frozenset(graph.outputs)

    def joint(*tensors: Tensor) -> list[Tensor | None]:
        values = dict(zip(names, tensors, strict=False))
        for name in (*grad_inputs, *grad_params):
            # Detached, so that a value which is also an output's own storage still gets a gradient of its own.
            values[name] = values[name].detach().requires_grad_()
        wanted = [values[name] for name in (*grad_inputs, *grad_params)]
        for op in graph.ops:
            results = _call(op, known, values, place, kernels)
            for value, tensor in zip(op.results, results, strict=True):
                values[value.name] = in_order(tensor, images) if value.name in handed_on else tensor
        results = [values[name] for name in (*graph.outputs, *(value for _, value in graph.updates))]
        reached = [(values[name], tangent) for name, tangent in zip(outputs, tensors[len(names) :], strict=True)]
        roots, tangents = zip(*reached, strict=True) if reached else ((), ())
        grads = list(torch.autograd.grad(roots, wanted, tangents, allow_unused=True)) if wanted and roots else []
        given = slice(0, len(grad_inputs))
        grads[given] = [grad if grad is None else in_order(grad, images) for grad in grads[given]]
        if images:  # a parameter's gradient lies as the parameter does
            own = slice(len(grad_inputs), None)
            grads[own] = [grad if grad is None else grad.contiguous() for grad in grads[own]]
        return [*(t.detach() for t in results), *grads, *(values[name] for name in made)]

    given = {value.name for value in (*graph.inputs, *graph.shared_values)} if images else frozenset[str]()
    fakes = [_fake(value, mode, device, value.name in given) for value in arguments]
    fakes += [_fake(known[name], mode, device, images) for name in outputs]
    traced = without_writes(trace_joint(joint, fakes, mode), fakes, mode)
    fix_expert_rows(traced)
    labels = [*map(label, names), *(f"gradient_{i}" for i in range(len(outputs)))]
    _name_placeholders(traced, labels)
    _drop_unread(traced)
    tangents = frozenset(labels[len(names) :])
    origin = _origins(traced, graph, tangents)
    return Joint(
        graph,
        traced,
        len(graph.outputs) + len(graph.updates),
        grad_inputs,
        grad_params,
        frozenset(label(value.name) for value in graph.params) | tangents,
        tangents,
        _storage_names(traced, tangents, *origin),
    )


@CACHES.memoized(maxsize=4096)
def label(name: str) -> str:
    """The name as a traced graph can have it: one that Python knows already (`input`) is changed there."""
    found = fx.Graph().placeholder(name).name
    return name if found == name else f"{found}_argument"


def grad_outputs(graph: SegmentGraph) -> list[str]:
    values = graph.values()
    return [name for name in graph.outputs if values[name].grad]


def _fake(value: Value, mode: object, device: str, image: bool = False) -> Tensor:
    sizes, dtype = value.type.sizes, getattr(torch, value.type.dtype)
    lies = memory_format(len(sizes), image)
    return fake_tensor(sizes, dtype, mode, device, lies)  # type: ignore[arg-type]


def _call(
    op: Op, known: dict[str, Value], values: dict[str, Tensor], place: torch.device, kernels: str
) -> Sequence[Tensor]:
    if kernels == "cuda" and op.target == ATTENTION:
        names = op.operands()
        return (_gpu_attention(op, [known[name] for name in names], [values[name] for name in names]),)
    if kernels == "cuda" and op.target == RMS_NORM:
        return (_gpu_rms_norm(op, [values[name] for name in op.operands()]),)
    return call(op, values, place)


def _gpu_attention(op: Op, operands: list[Value], tensors: list[Tensor]) -> Tensor:
    """By the kernel that a GPU takes for this call."""
    kernel = attention_kernel(op, operands, "cuda")
    rest = dict(zip(("mask", "dropout_p", "is_causal"), op.args[3:], strict=False)) | dict(op.kwargs)
    rate, causal, scale = rest.get("dropout_p", 0.0), rest.get("is_causal", False), rest.get("scale")
    query, key, value = tensors[:3]
    mask = tensors[3] if len(tensors) > 3 else None
    if mask is not None and not mask.is_floating_point():
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill(~mask, float("-inf"))
    ops = torch.ops.aten
    if kernel == "cudnn":
        found = ops._scaled_dot_product_cudnn_attention(query, key, value, mask, True, rate, causal, scale=scale)
    elif kernel == "efficient":
        if mask is not None:  # the kernel reads rows, one for every sample and head, and gives back as many gradients
            mask = mask if mask.stride(-1) == 1 else mask.contiguous()
            mask = mask.expand(*query.shape[:-1], key.shape[-2])
        found = ops._scaled_dot_product_efficient_attention(query, key, value, mask, True, rate, causal, scale=scale)
    elif kernel == "math":
        grouped = bool(rest.get("enable_gqa", False))
        found = ops._scaled_dot_product_attention_math(
            query, key, value, mask, rate, causal, scale=scale, enable_gqa=grouped
        )
    elif kernel == "flash":
        found = ops._scaled_dot_product_flash_attention(query, key, value, rate, causal, scale=scale)
    else:  # on copies of whole 8 columns
        width = query.shape[-1]
        query, key, value = (torch.nn.functional.pad(one, (0, -width % 8)) for one in (query, key, value))
        scale = width**-0.5 if scale is None else scale
        found = ops._scaled_dot_product_flash_attention(query, key, value, rate, causal, scale=scale)
        return found[0][..., :width]  # type: ignore[no-any-return]
    return found[0]  # type: ignore[no-any-return]


def _gpu_rms_norm(op: Op, tensors: list[Tensor]) -> Tensor:
    """One kernel on a GPU, which keeps the norm's statistics."""
    rest = dict(zip(("shape", "weight", "eps"), op.args[1:], strict=False)) | dict(op.kwargs)
    weight = tensors[1] if len(tensors) > 1 else None
    return rms_norm_as_on_gpu(tensors[0], list(rest["shape"]), weight, rest.get("eps"))


def _drop_unread(traced: fx.GraphModule) -> None:
    """The backward of a BatchNorm in training is handed running statistics and does not look at them; that of a frozen
    one does."""
    for node in traced.graph.nodes:
        name = str(node.target) if node.op == "call_function" else ""
        if name == CUDNN_NORM or (name == NATIVE_NORM and node.args[7]):
            node.args = (*node.args[:3], None, None, *node.args[5:])


def _origins(
    traced: fx.GraphModule, graph: SegmentGraph, tangents: frozenset[str]
) -> tuple[dict[str, fx.Node], dict[fx.Node, str]]:
    """(the node of each value, the op during which each node was traced); the values cease to be outputs."""
    made = [value.name for op in graph.ops for value in op.results]
    outputs = outputs_of(traced)
    count = len(outputs) - len(made)
    values = {name: node for name, node in zip(made, outputs[count:], strict=True) if isinstance(node, fx.Node)}
    order = {node: index for index, node in enumerate(traced.graph.nodes)}
    backward = depends_on(traced, tangents)
    ends = [max((order[values[v.name]] for v in op.results if v.name in values), default=-1) for op in graph.ops]
    during: dict[fx.Node, str] = {}
    nodes = [node for node in order if node.op == "call_function" and node not in backward]
    start = 0
    for op, end in zip(graph.ops, ends, strict=True):
        while start < len(nodes) and order[nodes[start]] <= end:
            during[nodes[start]] = op.name
            start += 1
    # A result that the op's own value does not need may be traced after it.
    for node in nodes:
        if is_part(node) and producer(node) in during:
            during[node] = during[producer(node)]
    traced.graph.output_node().args = (outputs[:count],)  # type: ignore[assignment]
    traced.graph.eliminate_dead_code()
    traced.recompile()
    alive = set(traced.graph.nodes)
    return (
        {name: node for name, node in values.items() if node in alive},
        {node: name for node, name in during.items() if node in alive},
    )


def _storage_names(
    traced: fx.GraphModule, tangents: frozenset[str], values: dict[str, fx.Node], during: dict[fx.Node, str]
) -> dict[fx.Node, str]:
    late = depends_on(traced, tangents)
    found: dict[fx.Node, str] = {n: n.name for n in traced.graph.nodes if n.op == "placeholder" and n not in late}
    for name, node in values.items():
        found.setdefault(base(node), name)
    counts: dict[str, int] = {}
    for node in traced.graph.nodes:
        if node in late or node in found or is_view(node) or not isinstance(node.meta.get("val"), Tensor):
            continue
        origin = during.get(node) or during.get(producer(node)) or "backward"
        counts[origin] = counts.get(origin, -1) + 1
        found[node] = f"{origin}~{counts[origin]}"
    return found


def _name_placeholders(traced: fx.GraphModule, labels: list[str]) -> None:
    """Give the traced arguments the segment's own names; other nodes step aside."""
    nodes = [node for node in traced.graph.nodes if node.op == "placeholder"]
    taken = set(labels)
    for node in traced.graph.nodes:
        if node not in nodes and node.name in taken:
            node.name = f"{node.name}_"
    for node, name in zip(nodes, labels, strict=True):
        node.target = name
        node.name = name
    traced.recompile()
