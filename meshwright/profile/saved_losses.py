"""What losses and distances that are made of several ops keep for backward: values that nobody names."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from meshwright.capture.program import Op, Value
from meshwright.profile.kept import Rule, Saved
from meshwright.profile.operands import type_bytes


def _nll(op: Op, operands: Sequence[Value]) -> Saved:
    """All that it reads, and the sum of the weights that count."""
    return Saved(tuple(range(len(operands))), (), operands[0].type.itemsize)


def _hinge_embedding(op: Op, operands: Sequence[Value]) -> Saved:
    """The margin that is left, and which targets are 1 and -1."""
    return Saved((), (), _largest_bytes(operands) + 2 * (_largest_bytes(operands) // operands[0].type.itemsize))


def _margin_ranking(op: Op, operands: Sequence[Value]) -> Saved:
    """The signs, and what was cut off at zero."""
    return Saved((), (), 2 * _largest_bytes(operands))


def _poisson_nll(op: Op, operands: Sequence[Value]) -> Saved:
    """The target, and the rate that the input is the logarithm of."""
    return Saved((1,), (), _largest_bytes(operands))


def _cosine_similarity(op: Op, operands: Sequence[Value]) -> Saved:
    """Both sides, both divided by their lengths, the lengths, and these held above zero."""
    rows = type_bytes(op.results[0].type)
    dim = op.args[2] if len(op.args) > 2 else dict(op.kwargs).get("dim", 1)
    width = max(value.type.sizes[dim] for value in operands)
    return Saved((0, 1), (), rows * (4 + 2 * width))


def _pairwise_distance(op: Op, operands: Sequence[Value]) -> Saved:
    """The differences, and the distances."""
    return Saved((), (0,), _largest_bytes(operands))


def _take_along_dim(op: Op, operands: Sequence[Value]) -> Saved:
    """Along a dim the indices once more; of all elements in a row the indices themselves."""
    return Saved((0,), (), type_bytes(operands[1].type)) if len(op.args) > 2 or op.kwargs else Saved((0, 1))


def _largest_bytes(operands: Sequence[Value]) -> int:
    return max(prod(value.type.sizes) for value in operands) * operands[0].type.itemsize


LOSSES: dict[str, Rule] = {
    **dict.fromkeys(("nll_loss_nd", "nll_loss", "nll_loss2d"), _nll),
    "hinge_embedding_loss": _hinge_embedding,
    "margin_ranking_loss": _margin_ranking,
    "poisson_nll_loss": _poisson_nll,
    "cosine_similarity": _cosine_similarity,
    "pairwise_distance": _pairwise_distance,
    "take_along_dim": _take_along_dim,
}
