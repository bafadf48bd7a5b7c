"""Elementwise ops: dims broadcast from the right; the linear ones also carry partial sums."""

from __future__ import annotations

from meshwright.rules.rule import Call, Rule
from meshwright.rules.shapes import broadcast, named, opaque
from meshwright.rules.signature import Signature, Term

# Casts are not among the linear ops: rounding a partial sum is not rounding the sum.
_PLAIN = """
    abs acos acosh asin asinh atan atan2 atanh bitwise_and bitwise_not bitwise_or bitwise_xor ceil celu clamp
    clamp_max clamp_min copysign cos cosh deg2rad digamma dropout elu eq erf erfc exp exp2 expm1 float_power floor
    floor_divide fmod frac ge gelu gt hardshrink hardsigmoid hardswish hardtanh hypot isfinite isinf isnan le
    leaky_relu lerp lgamma log log10 log1p log2 log_sigmoid logaddexp logical_and logical_not logical_or
    logical_xor logit lt masked_fill max.other maximum min.other minimum mish nan_to_num ne nextafter pow prelu
    rad2deg reciprocal relu relu6 remainder round rsqrt rsub selu sgn sigmoid sign signbit silu sin sinc sinh
    softplus softshrink sqrt square tan tanh threshold to trunc xlogy addcmul addcdiv
    absolute arccos arcsin arctan erfinv fmax fmin greater greater_equal isclose less less_equal not_equal
    special_entr special_expit special_logit bitwise_left_shift bitwise_right_shift __lshift__ __rshift__
    __and__ __or__ __xor__ broadcast_tensors complex copy fill polar empty_like full_like ones_like zeros_like
"""
_UNARY_LINEAR = "neg negative positive real conj clone contiguous alias detach lift_fresh_copy"


def linear_in_all(call: Call) -> Signature:
    """`add` and `sub`: linear in two tensors together, but not where one of them is a number."""
    signature = broadcast(call)
    return signature.linear() if len(call.types) == 2 else signature


def linear_in_one(call: Call) -> Signature:
    """`mul` and `div` by a number are linear; the product of two partial sums is not, nor is a rounded quotient."""
    signature = broadcast(call)
    rounded = dict(call.op.kwargs).get("rounding_mode") is not None
    return signature.linear() if len(call.types) == 1 and not rounded else signature


def unary_linear(call: Call) -> Signature:
    return broadcast(call).linear()


def where(call: Call) -> Signature:
    """Linear in the two branches together; the condition is the same on every rank."""
    signature = broadcast(call)
    return signature.linear(1, 2) if len(call.types) == 3 else signature


def prelu(call: Call) -> Signature:
    """One slope for all, or one per channel (dim 1)."""
    dims = named(call.rank())
    slopes = call.types[1].sizes
    slope = dims[1] if slopes and slopes[0] > 1 else ()
    return Signature((Term(dims), Term((slope,) * len(slopes))), (Term(dims),))


def like_other(call: Call) -> Signature:
    """The second operand gives its dtype only."""
    dims = named(call.rank())
    (other,), fixed = opaque(call.types[1:])
    return Signature((Term(dims), other), (Term(dims),), fixed)


RULES = {f"aten.{name}": Rule(broadcast, shown="..., ... -> ...") for name in _PLAIN.split()}
RULES |= {f"aten.{name}": Rule(unary_linear, shown="... -> ..., or +") for name in _UNARY_LINEAR.split()}
RULES |= {
    "aten.add": Rule(linear_in_all, shown="..., ... -> ..., or +"),
    "aten.sub": Rule(linear_in_all, shown="..., ... -> ..., or +"),
    "aten.mul": Rule(linear_in_one, shown="..., ... -> ..., or + by a number"),
    "aten.div": Rule(linear_in_one, shown="..., ... -> ..., or + by a number"),
    "aten.subtract": Rule(linear_in_all, shown="..., ... -> ..., or +"),
    "aten.multiply": Rule(linear_in_one, shown="..., ... -> ..., or + by a number"),
    "aten.divide": Rule(linear_in_one, shown="..., ... -> ..., or + by a number"),
    "aten.true_divide": Rule(linear_in_one, shown="..., ... -> ..., or + by a number"),
    "aten.where": Rule(where, shown="..., ..., ... -> ..., or + of the last two"),
    "aten.prelu": Rule(prelu, shown="b c ..., c -> b c ..."),
    "aten.type_as": Rule(like_other, shown="..., x! -> ..."),
    "aten.bucketize.Tensor": Rule(like_other, shown="..., x! -> ..."),
    "aten.to.other": Rule(like_other, shown="..., x! -> ..."),
}
