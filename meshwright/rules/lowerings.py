"""Local functions with named collectives inside: what a strategy's lowering runs where the op itself will not do.

Each takes local tensors and, as keyword literals, mesh axes by name (`dp*tp` for two at once, empty for none).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from meshwright.capture import counter, experts
from meshwright.capture.targets import resolve
from meshwright.layout.collectives import all_gather, all_reduce, axis_index, exchange_rows
from meshwright.rules.differentiable import gather_for_all, sharded_class_losses
from meshwright.rules.ring import RingAttention
from meshwright.rules.synchronised import LayerNorm, RMSNorm, Softmax


class Placed(TypedDict):
    """Where the experts of a mixture are: what each does, how many there are, over which axis, on how many ranks."""

    body: experts.Body
    experts_: int
    axis: str
    size: int


def vocab_embedding(weight: Tensor, indices: Tensor, *, padding_idx: int, axis: str, width: int) -> Tensor:
    """Rows of a vocabulary that is sharded over `axis`, `width` a rank: zeros where another rank holds the row."""
    if not weight.shape[0]:  # a rank whose part of the vocabulary is empty
        return weight.sum(0).expand(*indices.shape, weight.shape[1])
    local = indices - axis_index(axis) * width
    here = (local >= 0) & (local < weight.shape[0])
    found = F.embedding(local.where(here, 0), weight)
    if padding_idx >= 0:
        # The padding row is looked up but never trained.
        found = torch.where((indices == padding_idx)[..., None], found.detach(), found)
    return found.where(here[..., None], 0)


def cross_entropy(
    logits: Tensor,
    targets: Tensor,
    weight: Tensor | None = None,
    *,
    ignore_index: int,
    label_smoothing: float,
    rows: str,
    parts: int,
) -> Tensor:
    """This rank's share of a mean over all rows: a partial sum over the axis `rows`, cut into `parts`."""
    total = F.cross_entropy(
        logits, targets, weight, ignore_index=ignore_index, reduction="sum", label_smoothing=label_smoothing
    )
    if targets.is_floating_point():
        return total / (targets.numel() // targets.shape[min(1, targets.dim() - 1)] * parts)
    return total / _counted(targets, weight, ignore_index, rows)


def nll_loss(logs: Tensor, targets: Tensor, weight: Tensor | None = None, *, ignore_index: int, rows: str) -> Tensor:
    """This rank's share of a mean over all rows of the targets' negative logarithms."""
    total = F.nll_loss(logs, targets, weight, ignore_index=ignore_index, reduction="sum")
    return total / _counted(targets, weight, ignore_index, rows)


def _counted(targets: Tensor, weight: Tensor | None, ignore_index: int, rows: str) -> Tensor:
    """How many rows count on all ranks of `rows`, or the sum of their weights."""
    valid = targets != ignore_index
    own = valid.sum() if weight is None else (weight[targets.where(valid, 0)] * valid).sum()
    counted: Tensor = all_reduce(own, rows)
    return counted


def vocab_cross_entropy(
    logits: Tensor, targets: Tensor, *, reduction: int, ignore_index: int, rows: str, classes: str, width: int
) -> Tensor:
    """The loss with the classes sharded over `classes`, `width` a rank: no logits are gathered. Partial over `rows`."""
    valid = targets != ignore_index
    # `where`, not a product: a row that does not count has no gradient, even when no row counts (0 / 0).
    losses = sharded_class_losses(logits, targets.where(valid, 0), classes, width).where(valid, 0)
    if reduction == 0:
        return losses.to(logits.dtype)
    if reduction == 2:
        return losses.sum().to(logits.dtype)
    count = valid.sum()
    return (losses.sum() / (all_reduce(count, rows) if rows else count)).to(logits.dtype)


def batch_norm(x: Tensor, *rest: Any, axis: str, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Training-mode BatchNorm (`capture.functional.batch_norm`, whose arguments these are) with the batch sharded over
    `axis`: statistics of the whole batch.

    Every rank's own mean and centred variance are gathered and merged: squares of large means never cancel.
    """
    weight, bias, mean, var, momentum, eps = rest
    dims = [dim for dim in range(x.dim()) if dim != 1]
    own_var, own_mean = torch.var_mean(x, dims, correction=0)
    own = torch.stack([own_mean, own_var]).to(torch.promote_types(x.dtype, mean.dtype))
    means, variances = gather_for_all(own[None], 0, axis, size).unbind(1)
    whole_mean = means.mean(0)
    whole_var = (variances + (means - whole_mean).square()).mean(0)
    scale = (whole_var + eps).rsqrt()
    scale = scale if weight is None else scale * weight
    shift = -whole_mean * scale if bias is None else bias - whole_mean * scale
    shape = [-1 if dim == 1 else 1 for dim in range(x.dim())]
    y = (x * scale.view(shape) + shift.view(shape)).to(x.dtype)
    count = x.numel() // x.shape[1] * size
    unbiased = whole_var.detach() * (count / (count - 1))
    return (
        y,
        torch.lerp(mean, whole_mean.detach().to(mean.dtype), momentum),
        torch.lerp(var, unbiased.to(var.dtype), momentum),
    )


def shared_layer_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, *, dims: int, eps: float, axis: str, size: int
) -> Tensor:
    """LayerNorm over the last `dims` dims, which are sharded over `axis` into `size` parts."""
    return LayerNorm.apply(x, weight, bias, dims, eps, axis, size)  # type: ignore[no-any-return, no-untyped-call]


def shared_rms_norm(x: Tensor, weight: Tensor | None, *, dims: int, eps: float | None, axis: str, size: int) -> Tensor:
    """RMSNorm over the last `dims` dims, which are sharded over `axis` into `size` parts."""
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    return RMSNorm.apply(x, weight, dims, eps, axis, size)  # type: ignore[no-any-return, no-untyped-call]


def shared_softmax(x: Tensor, *, dim: int, dtype: torch.dtype | None, log: bool, axis: str) -> Tensor:
    """Softmax, or its logarithm, along a dim that is sharded over `axis`."""
    x = x if dtype is None else x.to(dtype)
    return Softmax.apply(x, dim, log, axis)  # type: ignore[no-any-return, no-untyped-call]


def mean(
    x: Tensor,
    dim: tuple[int, ...] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
    parts: int,
) -> Tensor:
    """This rank's share of a mean over dims that are cut into `parts`."""
    local = torch.mean(x, dtype=dtype) if dim is None else torch.mean(x, dim, keepdim, dtype=dtype)
    return local / parts


def mean_loss(x: Tensor, target: Tensor, *options: Any, loss: str, parts: int, **named: Any) -> Tensor:
    """This rank's share of an elementwise loss that is averaged over `parts` ranks."""
    local: Tensor = resolve(loss)(x, target, *options, **named)
    return local / parts


def causal_attention(query: Tensor, key: Tensor, value: Tensor, *, scale: float | None, axis: str) -> Tensor:
    """Causal attention of this rank's part of the queries, sharded over `axis`, to all keys before each."""
    rows, columns = query.shape[-2], key.shape[-2]
    first = axis_index(axis).to(query.device) * rows
    seen = torch.arange(columns, device=query.device) <= first + torch.arange(rows, device=query.device)[:, None]
    grouped = query.shape[-3] != key.shape[-3]
    return F.scaled_dot_product_attention(query, key, value, seen, scale=scale, enable_gqa=grouped)


def ring_attention(
    query: Tensor, key: Tensor, value: Tensor, *, scale: float | None, causal: bool, axis: str, size: int
) -> Tensor:
    """Attention of this rank's part of the sequence to all of it: keys and values go round the ranks of `axis`."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    return RingAttention.apply(query, key, value, scale, causal, axis, size)  # type: ignore[no-any-return, no-untyped-call]


def exchanged_mix(
    tokens: Tensor, chosen: Tensor, weights: Tensor, params: Sequence[Tensor], **where: Unpack[Placed]
) -> Tensor:
    """A mixture of experts that live on different ranks of `axis`: this rank's tokens go there and come back.

    Counts are gathered first, so that every rank knows how many rows it will hold; sizes vary only in between.
    """
    count, axis, size = where["experts_"], where["axis"], where["size"]
    order = chosen.flatten().argsort()
    counts = all_gather(experts.count_rows(chosen, count)[None], 0, axis, size)
    rows, local = order.shape[0], count // size
    mine = axis_index(axis).to(counts.device)[None]
    here = counts.view(size, size, local).index_select(1, mine).sum((0, 1))
    held = exchange_rows(tokens[order // chosen.shape[1]], counts, rows, axis, size, False)
    ids = torch.bucketize(torch.arange(held.shape[0], device=held.device), here.cumsum(0), right=True)
    made = experts.run_body(where["body"], held, here.cumsum(0).to(torch.int32), ids, params)
    return experts.combine(exchange_rows(made, counts, rows, axis, size, True), weights, order)


def local_mix(
    tokens: Tensor, chosen: Tensor, weights: Tensor, params: Sequence[Tensor], **where: Unpack[Placed]
) -> Tensor:
    """This rank's experts' share of a mixture of all tokens: a partial sum over `axis`."""
    count = where["experts_"]
    local = count // where["size"]
    ids = (chosen - axis_index(where["axis"]).to(chosen.device) * local).remainder(count)  # this rank's experts first
    order = ids.flatten().argsort()
    counts = experts.count_rows(ids, count)[:local]
    mine = (torch.arange(order.shape[0], device=tokens.device) < counts.sum())[:, None]
    # Rows past the last group are not computed: whatever stands there is masked, before and after.
    rows = tokens[order // chosen.shape[1]].where(mine, 0)
    ends, kept = counts.cumsum(0).to(torch.int32), ids.flatten()[order] % local
    made = experts.run_body(where["body"], rows, ends, kept, params)
    return experts.combine(made.where(mine, 0), weights, order)


Cut = tuple[tuple[int, str, int], ...]
"""Dims that are cut, each with the axes that cut it and the length of a piece."""


def placed_dropout(x: Tensor, key: Tensor, p: float, *, shape: tuple[int, ...], cut: Cut) -> Tensor:
    """Dropout of this rank's piece of a tensor of `shape`: what the whole tensor's dropout does there."""
    found: Tensor = counter.dropout(x, key, p, _start(x.dim(), cut), shape)
    return found


def placed_uniform(
    key: Tensor, sizes: tuple[int, ...], dtype: torch.dtype, *, shape: tuple[int, ...], cut: Cut
) -> Tensor:
    """This rank's piece of uniform random numbers of `shape`."""
    found: Tensor = counter.uniform(key, sizes, dtype, _start(len(sizes), cut), shape)
    return found


def placed_normal(
    key: Tensor, sizes: tuple[int, ...], dtype: torch.dtype, *, shape: tuple[int, ...], cut: Cut
) -> Tensor:
    """This rank's piece of normal random numbers of `shape`."""
    found: Tensor = counter.normal(key, sizes, dtype, _start(len(sizes), cut), shape)
    return found


def _start(rank: int, cut: Cut) -> Tensor:
    """The place of the piece's first element, dim by dim; known when it runs, so that a trace holds on every rank."""
    places = [torch.zeros((), dtype=torch.int64)] * rank
    for dim, axis, width in cut:
        places[dim] = axis_index(axis) * width
    return torch.stack(places)
