"""At least one concrete call for every rule of the table: what the proof runs.

Sizes are multiples of 12 where a rule can shard, so that axes of 2, 3 and 2x2 all divide them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from elementwise_cases import elementwise, unary
from rule_operands import bools, distinct, f, ints, plain, signs
from torch import Tensor, nn

from meshwright.capture import counter
from meshwright.rules.prove import TOLERANCE, Case, case
from meshwright.rules.register import packet
from meshwright.rules.table import RULES


def _has_derivative(function: Callable[..., tuple[Tensor, ...]]) -> bool:
    """Not of every op in every version of torch."""
    try:
        function(torch.ones(2, requires_grad=True))[0].backward()  # type: ignore[no-untyped-call]
    except RuntimeError:
        return False
    return True


BATCH_NORM = "meshwright.capture.functional:batch_norm"
SDPA = "aten.scaled_dot_product_attention.default"
LOSS = "aten.cross_entropy_loss.default"


def matmul() -> Iterator[Case]:
    yield case("aten.linear.default", f(4, 6, 12), f(12, 12), f(12))
    yield case("aten.linear.default", f(12, 12), f(6, 12))
    yield case("aten.linear.default", f(12), f(6, 12), f(6))
    yield case("aten.linear.default", plain(4, 12), f(6, 12), bias=f(6))
    yield case("aten.mm.default", f(12, 6), f(6, 4))
    yield case("aten.bmm.default", f(12, 6, 4), f(12, 4, 6))
    yield case("aten.mv.default", f(12, 6), f(6))
    yield case("aten.dot.default", f(12), f(12))
    yield case("aten.outer.default", f(12), f(6))
    yield case("aten.matmul.default", f(12), f(12))
    yield case("aten.matmul.default", f(6, 12), f(12))
    yield case("aten.matmul.default", f(12), f(6, 12, 4))
    yield case("aten.matmul.default", f(4, 1, 6, 12), f(6, 12, 2))
    yield case("aten.matmul.default", f(6, 4, 12), f(12, 6))
    yield case("aten.addmm.default", f(12), f(6, 4), f(4, 12))
    yield case("aten.addmm.default", f(6, 1), f(6, 4), f(4, 12), beta=2, alpha=3)
    yield case("aten.baddbmm.default", f(4, 6, 12), f(4, 6, 6), f(4, 6, 12))
    rows, ends = torch.rand(12, 48).requires_grad_(), torch.tensor([3, 3, 9, 12], dtype=torch.int32)
    yield case("aten._grouped_mm.default", rows, torch.rand(4, 48, 48).requires_grad_(), ends)
    yield case("aten.addmv.default", f(12), f(12, 6), f(6), beta=2, alpha=3)
    yield case("aten.addmv.default", f(1), f(12, 6), f(6))
    yield case("aten.addbmm.default", f(12, 6), f(4, 12, 2), f(4, 2, 6))
    yield case("aten.vdot.default", f(12), f(12))
    yield case("aten.ger.default", f(12), f(6))
    yield case("aten.cdist.default", f(6, 12, 2), f(1, 4, 2))
    yield case("aten.bilinear.default", f(4, 6), f(4, 12), f(6, 6, 12), f(6))
    yield case("aten.bilinear.default", f(2, 4, 6), f(2, 4, 12), f(6, 6, 12))
    yield case("aten.einsum.default", "bij,bjk->bik", (f(4, 6, 12), f(4, 12, 6)))
    yield case("aten.einsum.default", "bsh,hd->bsd", (f(4, 1, 12), f(12, 6)))
    yield case("aten.einsum.default", "...ij, ...jk -> ...ik", (f(4, 6, 12), f(6, 1, 12, 4)))
    yield case("aten.einsum.default", "...ij,jk", (f(2, 4, 6, 12), f(12, 6)))
    yield case("aten.einsum.default", "bsec,bsh->ebch", (f(4, 6, 12, 2), f(4, 6, 8)))
    yield case("aten.einsum.default", "ii,j", (f(6, 6), f(12)))


GATED = (
    ("meshwright.grouped_mm.default", ("$rows", "$p0", "$ends"), (), 1),
    ("aten.chunk.default", ("$v0", 2, -1), (), 2),
    ("aten.silu.default", ("$v1",), (), 1),
    ("aten.mul.Tensor", ("$v3", "$v2"), (), 1),
    ("meshwright.grouped_mm.default", ("$v4", "$p1", "$ends"), (), 1),
)
BIASED = (
    ("meshwright.grouped_mm.default", ("$rows", "$p0", "$ends"), (), 1),
    ("aten.index.Tensor", ("$p1", ("$ids",)), (), 1),
    ("aten.add.Tensor", ("$v0", "$v1"), (), 1),
)


def experts() -> Iterator[Case]:
    def weight(*shape: int) -> Tensor:
        return torch.rand(shape).sub(0.5).requires_grad_()

    def picks(tokens: int, top: int, count: int) -> Tensor:
        return torch.stack([torch.randperm(count)[:top] for _ in range(tokens)])

    mix = "meshwright.capture.experts:mix"
    given = weight(12, 16), picks(12, 2, 12), torch.rand(12, 2).requires_grad_()
    yield case(mix, *given, (weight(12, 16, 32), weight(12, 16, 16)), body=GATED, experts=12)
    lopsided = torch.tensor([[0, 1]] * 11 + [[11, 0]])  # most experts get nothing, and some ranks too
    yield case(mix, given[0], lopsided, given[2], (weight(12, 16, 32), weight(12, 16, 16)), body=GATED, experts=12)
    yield case(mix, *given, (weight(12, 16, 16), weight(12, 16)), body=BIASED, experts=12)


def attention() -> Iterator[Case]:
    q = f(4, 12, 6, 8)
    yield case(SDPA, q, f(4, 12, 6, 8), f(4, 12, 6, 4))
    yield case(SDPA, q, f(4, 6, 6, 8), f(4, 6, 6, 8), None, 0.0, True, enable_gqa=True)
    yield case(SDPA, q, f(4, 1, 6, 8), f(4, 1, 6, 8), is_causal=True, enable_gqa=True, scale=0.3)
    yield case(SDPA, q, f(4, 12, 4, 8), f(4, 12, 4, 8), bools(1, 1, 6, 4).index_fill(3, torch.tensor([0]), True))
    yield case(SDPA, q, f(4, 12, 6, 8), f(4, 12, 6, 8), plain(12, 6, 6))
    yield case(SDPA, q, f(4, 6, 6, 8), f(4, 6, 6, 8), plain(4, 12, 6, 6), enable_gqa=True)
    yield case(SDPA, f(6, 4), f(6, 4), f(6, 4))


def norms() -> Iterator[Case]:
    yield case("aten.layer_norm.default", f(4, 6, 12), (12,), f(12), f(12), 1e-5, False)
    yield case("aten.layer_norm.default", f(12, 6, 4), (6, 4), None, f(6, 4))
    yield case("aten.layer_norm.default", f(12, 6), (6,))
    yield case("aten._weight_norm.default", f(12, 6), f(12, 1))
    yield case("aten._weight_norm.default", f(6, 4, 12), f(1, 1, 12), 2)
    yield case("aten.rms_norm.default", f(4, 6, 12), (12,), f(12), 1e-5)
    yield case("aten.rms_norm.default", f(4, 6, 12), (6, 12))
    yield case("aten.group_norm.default", f(12, 24, 3), 12, f(24), f(24), 1e-5)
    yield case("aten.group_norm.default", f(12, 6, 3), 1)
    yield case("aten.batch_norm.default", f(6, 12, 4), f(12), f(12), plain(12), plain(12), False, 0.1, 1e-5, False)
    yield case("aten.batch_norm.default", f(6, 12, 4), None, None, None, None, True, 0.1, 1e-5, False)
    instance = "aten.instance_norm.default"
    yield case(instance, f(6, 12, 4), f(12), f(12), None, None, True, 0.1, 1e-5, False)
    yield case(BATCH_NORM, f(12, 6, 4, 2), f(6), f(6), plain(6), plain(6), 0.1, 1e-5)
    yield case(BATCH_NORM, f(12, 6), None, None, plain(6), plain(6), 0.3, 1e-3)
    yield case(BATCH_NORM, f(12, 6, 2), None, f(6), plain(6), plain(6), 0.1, 1e-5)


def convolution() -> Iterator[Case]:
    yield case("aten.conv2d.default", f(6, 6, 5, 5), f(12, 6, 3, 3), f(12), (2, 2), (1, 1))
    yield case("aten.conv2d.default", f(6, 6, 5, 5), f(12, 6, 3, 3))
    yield case("aten.conv2d.default", f(4, 12, 4, 4), f(24, 1, 3, 3), f(24), (1, 1), (1, 1), (1, 1), 12)
    yield case("aten.conv2d.default", f(12, 4, 4), f(6, 12, 1, 1))
    yield case("aten.conv2d.padding", f(6, 12, 4, 4), f(12, 2, 3, 3), None, (1, 1), "same", (1, 1), 6)
    for n in (1, 2, 3):
        size = (4,) * n
        yield case(f"aten.conv{n}d.default", f(6, 12, *size), f(6, 12, *((2,) * n)), f(6), groups=1)
        yield case(f"aten.conv{n}d.padding", f(4, 6, *size), f(12, 6, *((3,) * n)), f(12), (1,) * n, "same")
        yield case(f"aten.max_pool{n}d.default", distinct(6, 12, *size), (2,) * n)
        yield case(f"aten.avg_pool{n}d.default", f(6, 12, *size), (2,) * n)
        yield case(f"aten.adaptive_avg_pool{n}d.default", f(6, 12, *size), (2,) * n)
        yield case(f"aten.adaptive_max_pool{n}d.default", distinct(6, 12, *size), (2,) * n)
        turned = f"aten.conv_transpose{n}d.{'default' if n == 1 else 'input'}"
        yield case(turned, f(6, 12, *size), f(12, 6, *((2,) * n)), f(6))
        yield case(turned, f(4, 24, *size), f(24, 2, *((2,) * n)), f(24), (2,) * n, (0,) * n, (0,) * n, 12)
        yield case(f"aten.upsample_nearest{n}d.vec", f(6, 12, *((3,) * n)), (6,) * n, None)
        pads = (1, 1) * n
        yield case(f"aten.reflection_pad{n}d.default", f(6, 12, *size), pads)
        yield case(f"aten.replication_pad{n}d.default", f(6, 12, *size), pads)
    yield case("aten.upsample_nearest2d.default", f(6, 12, 3, 3), (6, 6))
    yield case("aten.pixel_shuffle.default", f(6, 48, 4, 2), 2)
    yield case("aten.pixel_unshuffle.default", f(6, 12, 24, 8), 2)
    yield case("aten.im2col.default", f(6, 12, 4, 4), (2, 2), (1, 1), (0, 0), (2, 2))
    yield case("aten.col2im.default", f(6, 48, 4), (4, 4), (2, 2), (1, 1), (0, 0), (2, 2))
    yield case("aten.grid_sampler.default", f(6, 12, 3, 3), f(6, 12, 4, 2), 0, 0, False)
    yield case("aten.upsample_linear1d.vec", f(6, 12, 3), (6,), False, None)
    yield case("aten.upsample_bilinear2d.vec", f(6, 12, 3, 3), (6, 6), False, None)
    yield case("aten.upsample_bicubic2d.vec", f(6, 12, 3, 3), (6, 6), False, None)
    yield case("aten.upsample_trilinear3d.vec", f(6, 12, 3, 3, 3), (6, 6, 6), False, None)


def embedding() -> Iterator[Case]:
    yield case("aten.embedding.default", f(12, 6), ints(12, 4, 6))
    yield case("aten.embedding.default", f(12, 6), ints(12, 4, 6), 3)
    yield case("aten.embedding.default", f(12, 6), ints(12, 12), 3, True)


def loss() -> Iterator[Case]:
    lengths = torch.tensor([1, 3, 2] * 4)
    yield case("meshwright.ctc.default", f(8, 12, 6), ints(5, 12, 3) + 1, lengths + 4, lengths, 0, False)
    yield case(LOSS, f(12, 24), ints(24, 12))
    yield case(LOSS, f(12, 24), ints(6, 12), None, 1, 3)
    yield case(LOSS, f(12, 24), ints(6, 12), None, 2, 3)
    yield case(LOSS, f(12, 24), ints(6, 12), None, 0, 3)
    yield case(LOSS, f(6, 12, 4, 2), ints(12, 6, 4, 2), reduction=1, ignore_index=5)
    yield case(LOSS, f(12), torch.tensor(7))
    yield case(LOSS, f(12, 24).detach().mul(300).requires_grad_(), ints(24, 12))
    yield case(LOSS, f(12, 6), torch.full((12,), -100))
    yield case(LOSS, f(12, 6), ints(6, 12), plain(6), 1, 3)
    yield case(LOSS, f(12, 6), ints(6, 12), plain(6), 1, 3, 0.2)
    yield case(LOSS, f(12, 6), ints(6, 12), None, 1, 3, 0.1)
    yield case(LOSS, f(12, 6), ints(6, 12), None, 2, 3, 0.1)
    yield case(LOSS, f(12, 6, 4), f(12, 6, 4))
    yield case(LOSS, f(12, 6), plain(12, 6), plain(6), 1, -100, 0.1)
    yield case(LOSS, f(12), plain(12))
    yield from nll()


def nll() -> Iterator[Case]:
    def logs(*shape: int) -> Tensor:
        return f(*shape).detach().log().requires_grad_()

    yield case("aten.nll_loss_nd.default", logs(12, 6), ints(6, 12))
    yield case("aten.nll_loss_nd.default", logs(12, 6), ints(6, 12), plain(6), 1, 3)
    yield case("aten.nll_loss_nd.default", logs(6, 6, 4, 2), ints(6, 6, 4, 2), None, 2, 3)
    yield case("aten.nll_loss_nd.default", logs(12, 6), ints(6, 12), None, 0)
    yield case("aten.nll_loss.default", logs(12, 6), ints(6, 12))
    yield case("aten.nll_loss2d.default", logs(6, 6, 4, 2), ints(6, 6, 4, 2), None, 1, 2)


def reductions() -> Iterator[Case]:
    x = distinct(4, 6, 12)
    for name in ("sum.dim_IntList", "mean.dim", "amax.default", "amin.default"):
        yield case(f"aten.{name}", x, (1, -1))
        yield case(f"aten.{name}", x, (0,), True)
    yield case("aten.sum.dim_IntList", x, None)
    yield case("aten.mean.dim", x.detach().float().requires_grad_(), (1,), dtype=torch.float64)
    yield case("aten.sum.default", ints(5, 12, 4))
    for name in ("sum", "mean", "max", "min", "prod"):
        yield case(f"aten.{name}.default", x)
    for name in ("max.dim", "min.dim", "median.dim", "prod.dim_int"):
        yield case(f"aten.{name}", x, 1)
    for name in ("argmax", "argmin"):
        yield case(f"aten.{name}.default", x, 1, True)
        yield case(f"aten.{name}.default", x)
    for name in ("any", "all"):
        yield case(f"aten.{name}.default", bools(12, 4))
        yield case(f"aten.{name}.dim", bools(12, 4), 1)
    for name in ("var", "std"):
        yield case(f"aten.{name}.correction", x, (1,), correction=1)
        yield case(f"aten.{name}.dim", x, (1, 2), True, True)
    yield case("aten.logsumexp.default", x, (1,))
    yield case("aten.linalg_vector_norm.default", x, 2, (1,))
    for name in ("softmax.int", "log_softmax.int", "cumsum.default", "cumprod.default", "logcumsumexp.default"):
        yield case(f"aten.{name}", f(4, 6, 12), 1)
    yield case("aten.softmax.int", f(12), 0)
    yield case("aten.softmax.int", f(4, 12).detach().float().requires_grad_(), 1, torch.float64)
    yield case("aten.log_softmax.int", f(12, 24).detach().mul(300).requires_grad_(), -1)
    yield case("aten.cummax.default", x, 1)
    yield case("aten.cummin.default", x, 1)
    yield case("aten.norm.ScalarOpt_dim", x, 2, (1,), True)
    yield case("aten.cumsum.default", ints(5, 12, 6), -1)
    yield case("aten.sort.default", x, 1, True)
    yield case("aten.sort.stable", x, stable=True, dim=1)
    yield case("aten.argsort.default", x)
    yield case("aten.topk.default", x, 3)
    yield case("aten.tril.default", x, 1)
    yield case("aten.triu.default", x)
    yield case("aten._is_all_true.default", bools(12, 4))
    yield case("aten.histc.default", plain(12, 6), 4, 0, 1)
    yield case("aten.histc.default", plain(12, 6), 4)
    for name in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"):
        yield case(f"aten.{name}.default", f(12, 6), f(12, 6))
        yield case(f"aten.{name}.default", f(12, 6), f(12, 6), 2)
    yield case("aten.mse_loss.default", f(12, 6), f(12, 6), 0)
    yield case("aten.mse_loss.default", f(12, 6), f(12, 6), reduction=1)
    yield case("aten.soft_margin_loss.default", f(12, 6), signs(12, 6))
    yield case("aten.hinge_embedding_loss.default", f(12, 6), signs(12, 6))
    yield case("aten.margin_ranking_loss.default", f(12), f(12), signs(12), 0.5)
    yield case("aten.poisson_nll_loss.default", f(12, 6), plain(12, 6), True, False, 1e-8, 1)
    yield case("aten.cosine_similarity.default", f(12, 6, 4), f(6, 1, 4)[0:1], 2)
    yield case("aten.cosine_similarity.default", f(12, 6), f(12, 6))
    yield case("aten.pairwise_distance.default", f(12, 6), f(12, 6), 2.0, 1e-6, True)
    yield case("aten.kthvalue.default", x, 2, 1)
    yield case("aten.mode.default", distinct(12, 6), 1, True)
    yield case("aten.nansum.default", x, (1,))
    yield case("aten.norm.Scalar", x)
    yield case("aten.aminmax.default", x if _has_derivative(torch.aminmax) else x.detach(), dim=1)
    yield case("aten.median.default", x)
    for name in ("var", "std"):
        yield case(f"aten.{name}.default", x)
        yield case(f"aten.{name}_mean.correction", x, (1,), correction=1)
    yield case("aten.kl_div.default", f(12, 6), f(12, 6))
    yield case("aten.binary_cross_entropy.default", f(12, 6), f(12, 6), plain(6))
    yield case("aten.binary_cross_entropy.default", f(12, 6), f(12, 6), None, 2)
    yield case("aten.binary_cross_entropy_with_logits.default", f(12, 6), plain(12, 6), None, plain(6))
    yield case("aten.binary_cross_entropy_with_logits.default", f(12, 6), plain(12, 6), plain(12, 1), None, 0)
    yield case("aten.smooth_l1_loss.default", f(12, 6), f(12, 6), 1, 0.05)


def indexing() -> Iterator[Case]:
    yield case("aten.gather.default", f(12, 6), 1, ints(6, 12, 12))
    yield case("aten.gather.default", f(12, 6), 1, ints(6, 6, 12))
    yield case("aten.index_select.default", f(12, 6), 1, ints(6, 12))
    yield case("aten.scatter.src", f(12, 6), 1, torch.arange(6).repeat(12, 1), f(12, 6))
    yield case("aten.scatter.value", f(12, 6), 1, ints(6, 12, 2), 0.5)
    yield case("aten.scatter_add.default", f(12, 6), 0, ints(12, 6, 4), f(6, 4))
    yield case("aten.index.Tensor", f(4, 6, 12), (None, ints(6, 12)))
    yield case("aten.index.Tensor", f(4, 6, 12), (None, ints(6, 12, 1), ints(12, 4)))
    yield case("aten.index.Tensor", f(4, 6, 12), (ints(4, 6), None, ints(12, 6)))
    yield case("aten.index_put.default", f(4, 6, 12), (None, ints(6, 3)), f(3, 12), True)
    yield case("aten.index_put.default", f(12, 6), (ints(12, 3),), f(6), True)
    yield case("aten.scatter_reduce.two", f(12, 6), 1, ints(6, 12, 4), f(12, 4), "sum")
    yield case("aten.index_add.default", f(4, 6, 12), 1, ints(6, 3), f(4, 3, 12), alpha=2)
    yield case("aten.index_copy.default", f(4, 6, 12), 1, torch.tensor([4, 1]), f(4, 2, 12))
    yield case("aten.slice_scatter.default", f(4, 6, 12), f(4, 3, 12), 1, 2, 5)
    yield case("aten.slice_scatter.default", f(4, 6, 12), f(4, 6, 12), 1)
    yield case("aten.select_scatter.default", f(4, 6, 12), f(4, 12), 1, 2)
    yield case("aten.one_hot.default", ints(5, 12, 4), 6)
    yield case("aten.index_fill.int_Scalar", f(4, 6, 12), 1, ints(6, 3), 0.5)
    yield case("aten.index_fill.int_Tensor", f(4, 6, 12), 1, ints(6, 3), f())
    yield case("aten.take_along_dim.default", f(12, 6), ints(6, 12, 4), 1)
    yield case("aten.take_along_dim.default", f(12, 6), ints(72, 4))


def views() -> Iterator[Case]:
    x = f(4, 6, 12)
    yield case("aten.view.default", x, (4, 6, 6, -1))
    yield case("aten.view.default", x, (24, 12))
    yield case("aten.view.default", f(4, 3), (6, 2))
    yield case("aten.view.default", f(12, 1, 6), (1, 2, 6, 6))
    yield case("aten.view.default", f(0, 6), (0, 3, 2))
    yield case("aten._unsafe_view.default", x, (24, 12))
    yield case("aten.reshape.default", f(2, 6, 12).transpose(1, 2).detach().requires_grad_(), (24, 6))
    yield case("aten.flatten.using_ints", x, 1)
    yield case("aten.flatten.using_ints", f())
    yield case("aten.unflatten.int", x, -1, (6, -1))
    yield case("aten.transpose.int", x, 0, -1)
    yield case("aten.permute.default", x, (2, 0, -2))
    yield case("aten.t.default", f(12, 6))
    yield case("aten.numpy_T.default", f(12, 6))
    yield case("aten.mT.default", x)
    yield case("aten.swapaxes.default", x, 0, 2)
    yield case("aten.swapdims.default", x, 1, -1)
    yield case("aten.movedim.int", x, 0, -1)
    yield case("aten.movedim.intlist", x, (0, 1), (-1, 0))
    yield case("aten.moveaxis.int", x, 0, -1)
    yield case("aten.moveaxis.intlist", x, (2,), (0,))
    yield case("aten.adjoint.default", x)
    yield case("aten.ravel.default", f(12, 6))
    yield case("aten.broadcast_to.default", f(6, 1), (4, 6, 12))
    yield case("aten.diagonal.default", f(12, 4, 6), 1, 1, 2)
    yield case("aten.unfold.default", x, 1, 3, 2)
    yield case("aten.tensor_split.sections", x, 3, 1)
    yield case("aten.tensor_split.indices", x, (2, 5), 2)
    yield case("aten.concat.default", (x, f(4, 6, 3)), -1)
    yield case("aten.concatenate.default", (x, f(4, 6, 3)), -1)
    yield case("aten.tile.default", x, (2, 1, 1))
    yield case("aten.glu.default", x)
    yield case("aten.unsqueeze.default", x, -1)
    yield case("aten.squeeze.dim", f(12, 1, 6), 1)
    yield case("aten.squeeze.dim", f(12, 1, 6), 0)
    yield case("aten.squeeze.dims", f(12, 1, 6, 1), (1, -1))
    yield case("aten.squeeze.default", f(1, 12, 1))
    yield case("aten.expand.default", f(6, 1), (4, 6, 12))
    yield case("aten.expand.default", f(6, 1), (-1, 12))
    yield case("aten.view_as_complex.default", f(12, 6, 2))
    yield case("aten.view_as_real.default", torch.complex(plain(12, 6), plain(12, 6)).requires_grad_())
    yield case("aten.expand_as.default", f(6, 1), plain(4, 6, 12))
    yield case("aten.slice.Tensor", x, 1, 0, 9223372036854775807)
    yield case("aten.slice.Tensor", x, 2, 1, -1)
    yield case("aten.slice.Tensor", x, 2, 0, 12, 3)
    yield case("aten.slice.Tensor", x)
    yield case("aten.select.int", x, 1, -1)
    yield case("aten.unbind.int", f(3, 12), 0)
    yield case("aten.chunk.default", x, 3, -1)
    yield case("aten.split.Tensor", x, 5, -1)
    yield case("aten.split_with_sizes.default", x, (5, 7), 2)
    yield case("aten.cat.default", (x, f(4, 6, 3)), -1)
    yield case("aten.narrow.default", x, 1, 2, 3)
    yield case("aten.diff.default", x, 1, 1)
    yield case("aten.diff.default", x, 1, -1, f(4, 6, 1))
    yield case("aten.stack.default", (x, f(4, 6, 12)), 1)
    yield case("aten.roll.default", x, (2,), (1,))
    yield case("aten.roll.default", x, (2,))
    yield case("aten.flip.default", x, (1,))
    yield case("aten.repeat.default", x, (2, 1, 1, 3))
    yield case("aten.repeat_interleave.self_int", x, 3, 1)
    yield case("aten.repeat_interleave.self_int", f(12), 3)
    yield case("aten.repeat_interleave.self_int", x, 3, 1, output_size=18)
    yield case("aten.pad.default", x, (1, 2, 0, 0))
    yield case("aten.constant_pad_nd.default", x, (0, 0, 1, -1), 2.0)


def factories() -> Iterator[Case]:
    yield case("aten.arange.default", 12)
    yield case("aten.arange.start_step", 0, 12, 2, dtype=torch.float32)
    yield case("aten.linspace.default", 0.0, 1.0, 12)
    yield case("aten.eye.default", 6)
    yield case("aten.full.default", (12, 6), 2.0)
    yield case("aten.ones.default", (12,))
    yield case("aten.zeros.default", (12,))
    yield case("meshwright.capture.functional:constant", (1.0, 2.0), (2,), torch.float64, torch.device("cpu"))
    yield case("aten.scalar_tensor.default", 2.0)
    yield case("aten.tril_indices.default", 4, 4)
    yield case("aten.triu_indices.default", 4, 4)
    yield case("aten.hann_window.default", 12)
    yield case("aten.hamming_window.default", 12)
    yield case("aten.logspace.default", 0, 1, 12)
    yield case("aten.new_full.default", f(3), (12, 6), 2.0)
    yield case("aten.new_ones.default", f(3), (12,))
    yield case("aten.new_zeros.default", f(3), (12,))


def recurrent() -> Iterator[Case]:
    kinds: dict[str, tuple[nn.RNNBase, int]] = {
        "lstm": (nn.LSTM(4, 6, 2, batch_first=True, bidirectional=True), 2),
        "gru": (nn.GRU(4, 6, bias=False), 1),
        "rnn_tanh": (nn.RNN(4, 6), 1),
        "rnn_relu": (nn.RNN(4, 6, 2, nonlinearity="relu", dropout=0.5), 1),
    }
    for name, (module, states) in kinds.items():
        weights = tuple(p.detach().double().requires_grad_() for p in module.parameters())
        layers = module.num_layers * (1 + module.bidirectional)
        carried = tuple(f(layers, 12, 6) for _ in range(states))
        given = f(12, 3, 4) if module.batch_first else f(3, 12, 4)
        rest = (module.bias, module.num_layers, module.dropout, not module.dropout, module.bidirectional)
        carries = carried if states > 1 else carried[0]
        yield case(f"aten.{name}.input", given, carries, weights, *rest, module.batch_first)


def random() -> Iterator[Case]:
    key, other = counter.keys(2, torch.device("cpu"))
    yield case("meshwright.dropout.default", f(4, 6, 12), key, 0.3)
    yield case("meshwright.dropout.default", f(12), other, 1.0)
    yield case("meshwright.uniform.default", key, (6, 1, 12), torch.float64)
    yield case("meshwright.normal.default", key, (12, 6), torch.float64)
    yield case("meshwright.capture.counter:keys", 3, torch.device("cpu"))


FAMILIES: dict[str, Callable[[], Iterator[Case]]] = {
    "matmul": matmul,
    "experts": experts,
    "attention": attention,
    "norms": norms,
    "convolution": convolution,
    "recurrent": recurrent,
    "embedding": embedding,
    "loss": loss,
    "reductions": reductions,
    "indexing": indexing,
    "views": views,
    "factories": factories,
    "elementwise": elementwise,
    "random": random,
}


def tolerance(given: Case) -> float:
    """Grouped products do not run in double precision."""
    return 1e-5 if any(value.type.dtype == "float32" for value in given.op.results) else TOLERANCE


def rule_key(given: Case) -> str:
    """The table's entry that serves this case."""
    target = given.op.target
    return target if target in RULES else packet(target)


def cases(family: str) -> list[Case]:
    found = list(FAMILIES[family]())
    if family == "elementwise":
        found += unary({rule_key(given) for given in found})
    return found
