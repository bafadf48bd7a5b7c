"""Which ops of a traced graph a compiler writes into one kernel with their neighbours, and what they read and write."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, fx

from meshwright.cost.traced.storage import base, is_part, is_view

ELEMENTWISE = torch.Tag.pointwise
FUSED_BESIDES = frozenset(
    f"aten.{name}"
    for name in (
        "mean.dim", "mean.default", "sum.dim_IntList", "sum.default", "amax.default", "amin.default",
        "var_mean.correction",
        "_softmax.default", "_log_softmax.default", "_softmax_backward_data.default",
        "_log_softmax_backward_data.default", "native_layer_norm.default", "native_layer_norm_backward.default",
        "cat.default", "clone.default", "_to_copy.default", "nll_loss_forward.default",
        "slice_backward.default", "constant_pad_nd.default", "zeros_like.default", "ones_like.default", "full.default",
        "full_like.default", "zeros.default", "scalar_tensor.default", "arange.default", "select_backward.default",
        "gather.default", "embedding.default", "native_dropout.default", "argmax.default", "where.self",
        "masked_fill.Scalar", "silu_backward.default", "gelu_backward.default", "threshold_backward.default",
        "tanh_backward.default", "sigmoid_backward.default", "_fused_rms_norm.default",
        "_fused_rms_norm_backward.default", "nll_loss_backward.default", "embedding_dense_backward.default",
    )
) | {"meshwright.gpu_rms_norm.default", "meshwright.gpu_rms_norm_backward.default"}  # fmt: skip


def is_fusible(node: fx.Node) -> bool:
    """Whether a compiler writes the op into one kernel with its neighbours."""
    if node.op != "call_function":
        return False
    if is_part(node) or is_view(node):
        return True
    return ELEMENTWISE in getattr(node.target, "tags", ()) or str(node.target) in FUSED_BESIDES


def stored(node: fx.Node) -> list[fx.Node]:
    """The operands of a fused op that are memory: not what other fused ops hand it in registers."""
    found = dict.fromkeys(node.all_input_nodes)
    return [other for other in found if base(other).op == "placeholder" or not is_fusible(base(other))]


def readers(node: fx.Node) -> Iterable[fx.Node]:
    """Who reads the storage, through views and parts."""
    for user in node.users:
        if user.op == "call_function" and (is_view(user) or is_part(user)):
            yield from readers(user)
        else:
            yield user


def tensors_of(value: object) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [t for item in value for t in tensors_of(item)] if isinstance(value, list | tuple) else []


def bytes_of(tensors: Iterable[Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)
