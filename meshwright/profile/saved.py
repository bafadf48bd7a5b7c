"""What an op's backward reads: operands, results, and auxiliaries that only the two halves of the op know.

These are the tensors autograd keeps (torch.autograd.graph.saved_tensors_hooks shows them). Parameters among the
operands are listed too: it is for the caller to know that they are kept anyway. An op that is not listed here is
taken to keep everything it touches. Losses and distances that are made of several ops keep values that nobody names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Literal

from meshwright.capture.program import Op, Value
from meshwright.profile.attention import cpu_attention, cuda_attention
from meshwright.profile.kept import Rule, Saved
from meshwright.profile.mixture import MIXTURES, mixture_saved
from meshwright.profile.operands import Values, full_name, has_gradient, operands_of, packet, type_bytes
from meshwright.profile.saved_norms import CUDA_NORMS, NORMS, statistic_bytes


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


DeviceKind = Literal["cpu", "cuda"]


_NOTHING = """
    add sub rsub neg positive clone contiguous alias detach to type_as lift_fresh_copy
    view _unsafe_view reshape flatten unflatten transpose permute t numpy_T unsqueeze squeeze expand slice select
    unbind chunk split split_with_sizes narrow cat stack roll flip repeat repeat_interleave pad constant_pad_nd
    diff tril triu sum mean cumsum ceil floor round trunc sign
    upsample_nearest2d.vec upsample_bilinear2d.vec view_as reshape_as expand_as broadcast_to broadcast_tensors
"""
_OPERAND = """
    abs acos acosh asin asinh atan atanh avg_pool1d avg_pool2d avg_pool3d celu clamp clamp_max clamp_min cos cosh
    elu erf gelu hardsigmoid hardswish hardtanh leaky_relu log log10 log1p log2 logit mish pow.Tensor_Scalar relu6
    selu silu sin sinh softplus softshrink square var.correction adaptive_avg_pool1d glu
"""
_RESULT = "exp exp2 expm1 reciprocal relu rsqrt sigmoid sqrt tan tanh softmax log_softmax"
_OPERAND_AND_RESULT = "amax amin linalg_vector_norm logsumexp pow.Scalar cumprod std.correction"
GROUPED_PRODUCTS = ("_grouped_mm", "meshwright.grouped_mm", "transformers.grouped_mm_fallback")
_INDICES = "max.dim min.dim sort.default topk.default median.dim"


def saved(op: Op, values: Values, device: DeviceKind = "cpu") -> Saved:
    """What the backward of `op` reads on this kind of device; nothing where no gradient passes."""
    operands = operands_of(op, values)
    if not has_gradient(op):
        return Saved()
    for key in (full_name(op.target), packet(op.target)):
        rule = (_CUDA.get(key) if device != "cpu" else None) or _RULES.get(key)
        if rule is not None:
            return rule(op, operands)
    return _everything(op, operands)


def _everything(op: Op, operands: Sequence[Value]) -> Saved:
    return Saved(tuple(range(len(operands))), tuple(range(len(op.results))))


def _always(operands: tuple[int, ...] = (), results: tuple[int, ...] = ()) -> Rule:
    return lambda op, values: Saved(operands, results)


def _multiplied(first: int = 0) -> Rule:
    """A product keeps each factor that another one's gradient needs."""

    def rule(op: Op, operands: Sequence[Value]) -> Saved:
        pair = range(first, min(first + 2, len(operands)))
        kept = [i for i in pair if any(operands[j].grad for j in pair if j != i)]
        return Saved(tuple(kept))

    return rule


def _divided(op: Op, operands: Sequence[Value]) -> Saved:
    if len(operands) < 2:
        return Saved()
    return Saved((0, 1) if operands[1].grad else (1,))


def _cross_entropy(op: Op, operands: Sequence[Value]) -> Saved:
    """Log-probabilities, the targets, the class weights, and the sum of weights (a number)."""
    logits, weights = operands[0].type, len(operands) > 2
    smoothed = bool(op.argument(5, "label_smoothing", 0.0))
    kept = tuple(range(1, len(operands)))
    if operands[1].type.is_float:
        return Saved(kept, (), type_bytes(logits) * (2 if weights or smoothed else 1))
    marks = prod(operands[1].type.sizes) + 2 * logits.itemsize if smoothed else 0
    return Saved(kept, (), type_bytes(logits) + logits.itemsize + marks)


def _counted_cross_entropy(op: Op, operands: Sequence[Value]) -> Saved:
    """As above, and the count of all rows (probabilities divide by a number, and are kept as targets are)."""
    kept = _cross_entropy(op, operands)
    count = 0 if operands[1].type.is_float else operands[2].type.itemsize if len(operands) > 2 else 8
    return Saved(kept.operands, (), kept.auxiliary_bytes + count)


def _vocab_cross_entropy(op: Op, operands: Sequence[Value]) -> Saved:
    """Probabilities; for each row its target's place here, whether it is here, whether it counts; the count."""
    rows = prod(operands[1].type.sizes)
    count = 8 if dict(op.kwargs)["reduction"] == 1 else 0
    return Saved((), (), type_bytes(operands[0].type) + rows * (8 + 1 + 1) + count)


def _vocab_embedding(op: Op, operands: Sequence[Value]) -> Saved:
    """Each index's place here, and whether it is here."""
    return Saved((), (), prod(operands[1].type.sizes) * (8 + 1))


def _matmul(op: Op, operands: Sequence[Value]) -> Saved:
    """Factors whose leading dims broadcast are copied out first, and the copies are kept."""
    kept = _multiplied()(op, operands).operands
    ranks = [len(value.type.sizes) for value in operands]
    if min(ranks) < 3:
        return Saved(kept)
    lead = prod(op.results[0].type.sizes[:-2])
    whole = tuple(i for i in kept if prod(operands[i].type.sizes[:-2]) == lead)
    copied = sum(lead * prod(operands[i].type.sizes[-2:]) for i in kept if i not in whole)
    return Saved(whole, (), copied * operands[0].type.itemsize)


def _ring_attention(op: Op, operands: Sequence[Value]) -> Saved:
    """Queries, keys, values, the result, and the log of each row's sum."""
    return Saved((0, 1, 2), (0,), prod(operands[0].type.sizes[:-1]) * statistic_bytes(operands))


def _dropout(noise_bytes: int | None) -> Rule:
    """The noise, in numbers like the operand's, or the mask in bytes; nothing where nothing is dropped."""

    def rule(op: Op, operands: Sequence[Value]) -> Saved:
        idle = not op.argument(2, "train", True) or op.argument(1, "p", 0.5) == 0
        kept = operands[0].type
        return Saved((), (), 0 if idle else prod(kept.sizes) * (noise_bytes or kept.itemsize))

    return rule


def _indexed(op: Op, operands: Sequence[Value]) -> Saved:
    """The indices; the values that were taken or put go through unchanged."""
    return Saved(tuple(i for i, value in enumerate(operands) if not value.type.has_gradient))


def _adaptive_pool(op: Op, operands: Sequence[Value]) -> Saved:
    """Pooling everything to one place is a mean, which keeps nothing."""
    return Saved() if all(size == 1 for size in op.args[1]) else Saved((0,))


def _recurrent(values: int) -> Rule:
    """Beside its arguments, so many values of each layer for each of its outputs: gates and states of every step."""

    def rule(op: Op, operands: Sequence[Value]) -> Saved:
        layers = op.args[5 if op.target.endswith(".data") else 4]
        assert isinstance(layers, int)
        return replace(_everything(op, operands), auxiliary_bytes=values * layers * type_bytes(op.results[0].type))

    return rule


def _copy_of_operand(kept: tuple[int, ...]) -> Rule:
    return lambda op, operands: Saved(kept, (), type_bytes(operands[0].type))


def _mean_loss(op: Op, operands: Sequence[Value]) -> Saved:
    """Whatever the loss that is averaged keeps."""
    name = packet(dict(op.kwargs)["loss"])
    return _RULES.get(name, _everything)(op, operands)


def _max_pool(op: Op, operands: Sequence[Value]) -> Saved:
    """Where each maximum came from."""
    return Saved((0,), (), prod(op.results[0].type.sizes) * 8)


_RULES: dict[str, Rule] = {
    "lstm": _recurrent(8),
    "gru": _recurrent(7),
    "rnn_tanh": _recurrent(2),
    "rnn_relu": _recurrent(2),
    **{name: _always() for name in _NOTHING.split()},
    **{name: _always((0,)) for name in _OPERAND.split()},
    **{name: _always((), (0,)) for name in _RESULT.split()},
    **{name: _always((0,), (0,)) for name in _OPERAND_AND_RESULT.split()},
    **{name: _always((), (1,)) for name in _INDICES.split()},
    **{name: _multiplied() for name in ("mul", "linear", "mm", "bmm", "mv", "dot", "outer", "einsum")},
    **{name: _multiplied(1) for name in ("addmm", "baddbmm")},
    **{f"conv{n}d": _always((0, 1)) for n in (1, 2, 3)},
    **{f"max_pool{n}d": _max_pool for n in (1, 2, 3)},
    **{name: _always((0, 1)) for name in ("maximum", "minimum", "mse_loss", "gather")},
    **{f"conv_transpose{n}d": _always((0, 1)) for n in (1, 2, 3)},
    "matmul": _matmul,
    "dropout": _dropout(None),
    "meshwright.dropout": _always((1,)),  # its key; the mask is drawn again
    "placed_dropout": _always(),
    "index": _indexed,
    "index_put": _indexed,
    **dict.fromkeys(GROUPED_PRODUCTS, lambda op, operands: Saved(tuple(range(len(operands))))),
    "adaptive_avg_pool2d": _adaptive_pool,
    "mean_loss": _mean_loss,
    "l1_loss": _copy_of_operand(()),
    "log_sigmoid": _copy_of_operand((0,)),
    "div": _divided,
    "where": _always((0,)),
    "masked_fill": _always((1,)),
    "embedding": _always((1,)),
    "vocab_embedding": _vocab_embedding,
    "shared_softmax": _always((), (0,)),
    "scaled_dot_product_attention": cpu_attention,
    "causal_attention": cpu_attention,
    "ring_attention": _ring_attention,
    **dict.fromkeys(MIXTURES, mixture_saved(saved)),
    **LOSSES,
    **NORMS,
    "cross_entropy_loss": _cross_entropy,
    "cross_entropy": _counted_cross_entropy,
    "vocab_cross_entropy": _vocab_cross_entropy,
}
_CUDA: dict[str, Rule] = {
    **CUDA_NORMS,
    "dropout": _dropout(1),
    "scaled_dot_product_attention": cuda_attention,
    "causal_attention": cuda_attention,
}
