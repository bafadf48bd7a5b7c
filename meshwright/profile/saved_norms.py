"""What the backward of a norm reads: its input, its weight, and a few statistics."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from meshwright.capture.program import Op, Ref, Value
from meshwright.profile.kept import Rule, Saved


def _layer_norm(op: Op, operands: Sequence[Value]) -> Saved:
    """On CPU mean and deviation have the weight's dtype, or the input's where there is no weight."""
    return Saved(tuple(range(len(operands))), (), 2 * _rows(op, operands) * operands[-1].type.itemsize)


def _cuda_layer_norm(op: Op, operands: Sequence[Value]) -> Saved:
    return Saved(tuple(range(len(operands))), (), 2 * _rows(op, operands) * statistic_bytes(operands))


def _rms_norm(op: Op, operands: Sequence[Value]) -> Saved:
    """On CPU the op is a sequence of small ones, and the normalised rows stay for the weight's gradient.

    Half precision is widened first: the wide copy stays in the input's stead.
    """
    rows = _rows(op, operands) * statistic_bytes(operands)
    wide = prod(operands[0].type.sizes) * statistic_bytes(operands)
    copied = operands[0].type.itemsize < statistic_bytes(operands)
    kept = tuple(range(1 if copied else 0, len(operands)))
    return Saved(kept, (), rows + wide * (copied + (len(operands) > 1)))


def _fused_rms_norm(op: Op, operands: Sequence[Value]) -> Saved:
    return Saved(tuple(range(len(operands))), (), _rows(op, operands) * statistic_bytes(operands))


def _shared_norm(numbers: int) -> Rule:
    """Over sharded rows: the input, the weight and a few numbers per row."""

    def rule(op: Op, operands: Sequence[Value]) -> Saved:
        rows = prod(operands[0].type.sizes[: -dict(op.kwargs)["dims"]])
        return Saved((0, *_weight(op)), (), numbers * rows * statistic_bytes(operands))

    return rule


def _group_norm(op: Op, operands: Sequence[Value]) -> Saved:
    groups = int(op.args[1]) * operands[0].type.sizes[0]
    kept = (0, *(i for i in range(1, len(operands)) if i == 1))
    return Saved(kept, (), 2 * groups * operands[-1].type.itemsize)


def _batch_norm(op: Op, operands: Sequence[Value]) -> Saved:
    """The batch's own mean and deviation; the running statistics are held by reference and are results."""
    return Saved((0, *_weight(op)), (1, 2), 2 * operands[0].type.sizes[1] * operands[-1].type.itemsize)


def _fixed_batch_norm(op: Op, operands: Sequence[Value]) -> Saved:
    """With fixed statistics: the input, the weight, the statistics; a bias is not needed."""
    bias = len(_weight(op)) + 1 if isinstance(op.args[2], Ref) else 0
    return Saved(tuple(i for i in range(len(operands)) if not bias or i != bias))


def _cuda_batch_norm(op: Op, operands: Sequence[Value]) -> Saved:
    """On a GPU mean and deviation are in single precision at least."""
    kept = _any_batch_norm(op, operands)
    if op.target.startswith("aten.") or _is_lowered(op):
        return kept
    return Saved(kept.operands, kept.results, 2 * operands[0].type.sizes[1] * statistic_bytes(operands))


def _any_batch_norm(op: Op, operands: Sequence[Value]) -> Saved:
    if op.target.startswith("aten."):
        return _fixed_batch_norm(op, operands)
    return (_merged_batch_norm if _is_lowered(op) else _batch_norm)(op, operands)


def _merged_batch_norm(op: Op, operands: Sequence[Value]) -> Saved:
    """Over ranks: every rank's mean less the whole one, the whole mean, the deviation, and that times the weight."""
    per_channel = dict(op.kwargs)["size"] + 2 + len(_weight(op))
    return Saved((0, *_weight(op)), (), per_channel * operands[0].type.sizes[1] * operands[-1].type.itemsize)


def _instance_norm(op: Op, operands: Sequence[Value]) -> Saved:
    """Weights repeated per sample, and each sample's mean and deviation per channel."""
    batch, channels, *_ = operands[0].type.sizes
    return Saved((0,), (), (3 if len(operands) > 1 else 2) * batch * channels * operands[0].type.itemsize)


def _weight_norm(op: Op, operands: Sequence[Value]) -> Saved:
    """Direction and length, and the norm of each row."""
    return Saved((0, 1), (), prod(operands[1].type.sizes) * statistic_bytes(operands))


def _rows(op: Op, operands: Sequence[Value]) -> int:
    return prod(operands[0].type.sizes[: -len(op.args[1])])


def _weight(op: Op) -> tuple[int, ...]:
    return (1,) if isinstance(op.args[1], Ref) else ()


def _is_lowered(op: Op) -> bool:
    return op.target.startswith("meshwright.rules.lowerings:")


def statistic_bytes(operands: Sequence[Value]) -> int:
    """Of one number that is summed over others."""
    return max(4, operands[0].type.itemsize)


NORMS: dict[str, Rule] = {
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "shared_layer_norm": _shared_norm(2),
    "shared_rms_norm": _shared_norm(1),
    "group_norm": _group_norm,
    "batch_norm": _any_batch_norm,
    "instance_norm": _instance_norm,
    "_weight_norm": _weight_norm,
}
CUDA_NORMS: dict[str, Rule] = {
    "layer_norm": _cuda_layer_norm,
    "batch_norm": _cuda_batch_norm,
    "rms_norm": _fused_rms_norm,
}
