"""A mixture of experts as one op: tokens go to their experts' rows and come back mixed.

Op by op nothing of it can be sharded, because a sort couples all tokens; as a whole every token is on its own, and
experts can live on different ranks. `mixtures` finds such stretches in a program and puts `mix` in their place.

The experts' own work (between gather and weighing) is kept as a *body*: a tuple of calls (target, arguments, keyword
arguments, number of results) whose arguments name `$rows`, `$ends` (where each expert's rows end), `$ids` (each row's
expert), `$p0`, `$p1`, ... (parameters) and `$v0`, `$v1`, ... (results, in order).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

MIX = "meshwright.capture.experts:mix"
Body = tuple[tuple[str, tuple[Any, ...], tuple[tuple[str, Any], ...], int], ...]

GROUPED = frozenset(
    {"meshwright.grouped_mm.default", "aten._grouped_mm.default", "transformers.grouped_mm_fallback.default"}
)


def mix(
    tokens: Tensor, chosen: Tensor, weights: Tensor, params: Sequence[Tensor], *, body: Body, experts: int
) -> Tensor:
    """tokens [t, h], chosen and weights [t, picks], each parameter [experts, ...]: the weighted sum over picks."""
    order = chosen.flatten().argsort()
    rows = tokens[order // chosen.shape[1]]
    counts = count_rows(chosen, experts)
    made = run_body(body, rows, counts.cumsum(0).to(torch.int32), chosen.flatten()[order], params)
    return combine(made, weights, order)


def count_rows(chosen: Tensor, experts: int) -> Tensor:
    """How many picks each expert has; experts below 0 or past the last are left out."""
    return torch.histc(chosen.flatten().float(), experts, 0, experts - 1).to(torch.int64)


def combine(rows: Tensor, weights: Tensor, order: Tensor) -> Tensor:
    """Rows in sorted order, weighed, put back in the tokens' order and summed over the picks."""
    weighed = rows * weights.flatten()[order].unsqueeze(-1)
    return weighed[order.argsort()].view(-1, weights.shape[1], rows.shape[-1]).sum(1)


def run_body(body: Body, rows: Tensor, ends: Tensor, ids: Tensor, params: Sequence[Tensor]) -> Tensor:
    from meshwright.capture.targets import resolve

    known: dict[str, Any] = {"$rows": rows, "$ends": ends, "$ids": ids}
    known |= {f"$p{i}": param for i, param in enumerate(params)}

    def leaf(arg: Any) -> Any:
        if isinstance(arg, list | tuple):
            return tuple(map(leaf, arg))
        return known[arg] if isinstance(arg, str) and arg in known else arg

    found: Any = rows
    for target, args, kwargs, count in body:
        made = resolve(target)(*leaf(args), **{key: leaf(arg) for key, arg in kwargs})
        found = list(made) if count > 1 else [made]
        start = sum(name.startswith("$v") for name in known)
        known |= {f"$v{start + i}": tensor for i, tensor in enumerate(found)}
    result: Tensor = found[-1]
    return result
