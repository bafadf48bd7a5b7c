"""Attention with queries, keys and values all sharded along the sequence: keys and values go round a ring.

Each rank starts with its own block of keys and values, adds what its queries make of it to a softmax that is kept
unfinished (the largest score so far, the sum of exponentials, the weighted values), and passes the block on. Backward
goes round once more; the gradients of a block travel with it and are home after the last step. Nothing is gathered:
a rank never holds more than two blocks.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from meshwright.layout.collectives import axis_index, ring_shift


class RingAttention(torch.autograd.Function):
    """query [..., heads, s, d], key [..., groups, t, d], value [..., groups, t, e]: this rank's pieces."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, scale: float, causal: bool, axis: str, size: int
    ) -> Tensor:
        grouped, block = _grouped(query, key), torch.cat([key, value], -1)
        wide = torch.promote_types(query.dtype, torch.float32)
        largest = torch.full(grouped.shape[:-1], -torch.inf, dtype=wide, device=query.device).unsqueeze(-1)
        total = torch.zeros_like(largest)
        mixed = torch.zeros((*grouped.shape[:-1], value.shape[-1]), dtype=wide, device=query.device)
        for step in range(size):
            keys, values = _parts(block, key)
            scores = _scores(grouped, keys, scale, causal, axis, size, step).to(wide)
            higher = torch.maximum(largest, scores.amax(-1, keepdim=True))
            weights, fade = (scores - higher).exp(), (largest - higher).exp()
            total = total * fade + weights.sum(-1, keepdim=True)
            mixed = mixed * fade + weights @ values.to(wide)
            largest = higher
            if step + 1 < size:
                block = ring_shift(block, axis, size)
        result = (mixed / total).to(query.dtype).reshape(*query.shape[:-1], value.shape[-1])
        ctx.save_for_backward(query, key, value, result, largest + total.log())
        ctx.place = (scale, causal, axis, size)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, result, logs = ctx.saved_tensors
        scale, causal, axis, size = ctx.place
        wide, grouped = logs.dtype, _grouped(query, key)
        gradient = _grouped(gradients[0], key).to(wide)
        dots = (gradient * _grouped(result, key).to(wide)).sum(-1, keepdim=True)
        block = torch.cat([key, value], -1)
        back = torch.zeros(block.shape, dtype=wide, device=block.device)
        queries_back = torch.zeros(grouped.shape, dtype=wide, device=block.device)
        for step in range(size):
            keys, values = _parts(block, key)
            weights = (_scores(grouped, keys, scale, causal, axis, size, step).to(wide) - logs).exp()
            scores_back = weights * (gradient @ values.to(wide).transpose(-1, -2) - dots) * scale
            queries_back = queries_back + scores_back @ keys.to(wide)
            keys_back = (scores_back.transpose(-1, -2) @ grouped.to(wide)).sum(-3)
            values_back = (weights.transpose(-1, -2) @ gradient).sum(-3)
            back = back + torch.cat([keys_back, values_back], -1)
            if step + 1 < size:
                block = ring_shift(block, axis, size)
            back = ring_shift(back, axis, size)
        keys_back, values_back = torch.split(back, [key.shape[-1], value.shape[-1]], -1)
        queries_back = queries_back.reshape(query.shape).to(query.dtype)
        return queries_back, keys_back.to(key.dtype), values_back.to(value.dtype), None, None, None, None


def _grouped(query: Tensor, key: Tensor) -> Tensor:
    """Heads as (groups, queries of a group)."""
    *lead, heads, length, width = query.shape
    groups = key.shape[-3]
    return query.reshape(*lead, groups, heads // groups, length, width)


def _parts(block: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """The keys and values of a block, with a dim of one for the queries of a group."""
    width = key.shape[-1]
    return block[..., :width].unsqueeze(-3), block[..., width:].unsqueeze(-3)


def _scores(grouped: Tensor, keys: Tensor, scale: float, causal: bool, axis: str, size: int, step: int) -> Tensor:
    """Queries by the keys of the block that has come `step` ranks far; those that stand later are masked."""
    scores = grouped @ keys.transpose(-1, -2) * scale
    if not causal:
        return scores
    mine = axis_index(axis).to(scores.device)
    rows, columns = scores.shape[-2:]
    at = mine * rows + torch.arange(rows, device=scores.device)
    source = (mine - step).remainder(size) * columns + torch.arange(columns, device=scores.device)
    return scores.masked_fill(source > at[:, None], -torch.inf)
