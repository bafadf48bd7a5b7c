"""The ops of real models: what 75 architectures of transformers and diffusers hold when captured."""

from __future__ import annotations

import pytest

from meshwright.capture.program import Op
from meshwright.rules import resolve_rule

# Before any decomposition, by number of models; `.default` is left out. Not listed: assertions, in-place forms (a
# Program holds the functional ones), `item`, `rand`, and two that run alike on every rank: as_strided, masked_scatter.
OPS = """
    linear view add.Tensor cross_entropy_loss transpose.int unsqueeze mul.Tensor slice.Tensor expand arange
    reshape embedding to.dtype_layout contiguous to.dtype scaled_dot_product_attention alias le.Tensor
    sub.Tensor pad cat cumsum dropout index.Tensor layer_norm ne.Scalar __and__.Tensor neg new_ones
    pow.Tensor_Scalar diff eq.Tensor mean.dim to.device cos gelu sin rsqrt silu select.int softmax.int
    div.Tensor flatten.using_ints ge.Scalar chunk permute zeros matmul conv2d sum.dim_IntList exp floor_divide
    sigmoid topk type_as where.ScalarOther empty_like eq.Scalar histc lt.Scalar masked_fill.Scalar sort
    transformers.grouped_mm_fallback gather lift_fresh_copy split_with_sizes squeeze.dim arange.start
    repeat_interleave.self_int stack tanh clone conv1d ones zeros_like clamp new_zeros relu repeat softplus
    bitwise_not floor gt.Tensor where.self abs bmm einsum full_like tril batch_norm gt.Scalar log split.Tensor
    adaptive_avg_pool1d adaptive_avg_pool2d broadcast_tensors eye group_norm le.Scalar linalg_vector_norm
    min.other mse_loss numpy_T ones_like pow.Scalar reciprocal roll t unbind.int upsample_nearest2d.vec
    _is_all_true addmm any arange.start_step argmax baddbmm ceil clamp_min conv2d.padding div.Tensor_mode
    expand_as flip full index_select log_sigmoid max.dim max_pool2d maximum mean new_empty polar
    pow.Tensor_Tensor rsub.Scalar sign sqrt square squeeze sum triu unflatten.int upsample_bilinear2d.vec
    view_as_complex view_as_real
"""


def target(name: str) -> str:
    if name.startswith("transformers."):
        return f"{name}.default"
    return f"aten.{name}" if "." in name else f"aten.{name}.default"


@pytest.mark.parametrize("name", OPS.split())
def test_an_op_of_real_models_has_a_rule(name: str) -> None:
    assert resolve_rule(Op(target(name), (), (), ())).tier == "table"
