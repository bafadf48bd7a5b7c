"""The ops that real models hold, and which rule serves each: 75 architectures of transformers and diffusers, captured.

Tiny configurations in training mode with their loss, exported by torch 2.13 before any decomposition; a number is how
many of the 75 hold the op. In-place ops stand under the functional op that a Program holds in their place.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from meshwright.capture.program import Op
from meshwright.rules.resolve import resolve_rule

MODELS = 75

_COUNTED = """
75: linear view; 73: add.Tensor; 72: cross_entropy_loss; 71: transpose.int; 70: unsqueeze; 68: mul.Tensor;
67: slice.Tensor; 66: expand; 65: arange; 64: reshape; 63: embedding to.dtype_layout; 60: contiguous; 59: to.dtype;
55: scaled_dot_product_attention; 48: alias le.Tensor sub.Tensor; 47: pad; 45: cat;
42: cumsum dropout index.Tensor layer_norm ne.Scalar; 40: __and__.Tensor neg; 39: new_ones; 38: pow.Tensor_Scalar;
36: diff eq.Tensor; 35: mean.dim to.device; 34: cos gelu sin; 31: rsqrt; 29: silu; 22: select.int; 21: softmax.int;
20: div.Tensor flatten.using_ints ge.Scalar; 19: chunk permute; 17: zeros; 16: matmul; 15: conv2d;
14: sum.dim_IntList; 12: exp;
11: floor_divide index_put sigmoid topk type_as where.ScalarOther;
10: copy empty_like eq.Scalar histc lt.Scalar masked_fill.Scalar sort transformers.grouped_mm_fallback;
9: gather lift_fresh_copy split_with_sizes squeeze.dim; 8: arange.start repeat_interleave.self_int stack tanh;
7: clone conv1d ones zeros_like; 6: clamp new_zeros relu repeat softplus;
5: bitwise_not fill.Tensor floor gt.Tensor where.self; 4: abs bmm einsum full_like tril;
3: batch_norm gt.Scalar log split.Tensor;
2: adaptive_avg_pool1d adaptive_avg_pool2d broadcast_tensors detach eye group_norm le.Scalar linalg_vector_norm
min.other mse_loss numpy_T ones_like pow.Scalar reciprocal roll scatter.value t unbind.int upsample_nearest2d.vec;
1: _is_all_true addmm any arange.start_step argmax as_strided baddbmm ceil clamp_min conv2d.padding div.Tensor_mode
expand_as flip full index_select log_sigmoid masked_scatter max.dim max_pool2d maximum mean new_empty polar
pow.Tensor_Tensor rsub.Scalar scatter.src sign sqrt square squeeze sum triu unflatten.int upsample_bilinear2d.vec
view_as_complex view_as_real
"""


@dataclass(frozen=True, slots=True)
class Covered:
    """One op of real models: in how many, the tier that serves it whatever its shapes, and the rule's factors."""

    op: str
    models: int
    tier: str
    factors: str


def coverage() -> Iterator[Covered]:
    """Every op with its tier; one that the table does not have is looked for when its shapes are known."""
    for part in _COUNTED.split(";"):
        count, _, names = part.partition(":")
        for name in names.split():
            target = _target(name)
            rule = resolve_rule(Op(target, (), (), ()))
            yield Covered(target, int(count), "by its shapes" if rule.is_fallback else rule.tier, rule.text)


def _target(name: str) -> str:
    if name.startswith("transformers."):
        return f"{name}.default"
    return f"aten.{name}" if "." in name else f"aten.{name}.default"
