"""Attention."""

from __future__ import annotations

from math import prod

from meshwright.cost.op.case import Case, Seconds
from meshwright.profile.attention import is_causal
from meshwright.profile.count import RING


def variant_of(case: Case) -> str:
    """Which of the kinds that calibration tells apart."""
    query, key = case.operands[:2]
    grouped = len(query.shape) > 2 and query.shape[-3] != key.shape[-3]
    masks = case.operands[3:]
    variant = "grouped" if grouped else "causal" if is_causal(case.op) else "plain"
    if masks or case.name == "causal_attention":
        variant = "bias" if any(mask.grad for mask in masks) else "mask"
        variant = "strided" if case.unfused else variant
    return variant


def host_name(case: Case) -> str:
    variant = variant_of(case)
    return "attention" if variant in ("plain", "causal") or case.name == RING else f"attention_{variant}"


def attention(case: Case) -> Seconds:
    query, key = case.operands[:2]
    variant = variant_of(case)
    heads, keys, width = prod(query.shape[:-2]), key.shape[-2], query.shape[-1]
    if case.name == RING:  # plain products, block by block
        variant, keys = "strided", keys * dict(case.op.kwargs)["size"]
    groups = max(1, heads // prod(key.shape[:-2]))
    sides = (
        case.on.attention_s(variant, side, case.dtype, case.itemsize, heads, query.shape[-2], keys, width, groups)
        for side in ("forward", "backward")
    )
    return next(sides), next(sides), 0.0
