"""Ops that are hard to shard or to write without side effects."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bench.zoo.hard import CLASSES, PARTS, WIDTH, Hard, entry, sequences


class InPlaceScalars(Hard):
    def between(self, x: Tensor) -> Tensor:
        scale = x.detach().abs().sum(0).add(1.0)
        scale.pow_(-0.5)
        scale.masked_fill_(scale == float("inf"), 0.0)
        h = x * scale
        return h.clamp_(-2, 2).mul_(3.0).add_(0.5)


class SliceWrites(Hard):
    def between(self, x: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        out[:, :WIDTH] = x[:, WIDTH:] * 2
        out[:, WIDTH:] += x[:, :WIDTH].tanh()
        out[:, 0].mul_(0.5)
        return out


class Fourier(nn.Module):
    """A Fourier neural operator's layer: slice writes into a complex tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.2 * torch.randn(WIDTH, WIDTH, 4, dtype=torch.cfloat))
        self.last = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(x.transpose(1, 2))
        out = torch.zeros(x.shape[0], WIDTH, spectrum.shape[-1], dtype=torch.cfloat)
        out[:, :, :4] = torch.einsum("bix,iox->box", spectrum[:, :, :4], self.weight)
        return nn.functional.cross_entropy(self.last(torch.fft.irfft(out, n=x.shape[1]).mean(-1)), y)


class Sorted(Hard):
    def between(self, x: Tensor) -> Tensor:
        high, at = x.topk(5, dim=-1)
        low, _ = x.sort(dim=-1)
        return x.scatter_add(1, at, high) + low.flip(-1) + x.argsort(-1).float() * 0.01


class BatchSorted(Hard):
    """Sorted over the samples: each result depends on all."""

    def between(self, x: Tensor) -> Tensor:
        return x.sort(dim=0).values + x.cumsum(0) / 8


class Scattered(Hard):
    def between(self, x: Tensor) -> Tensor:
        at = (x.detach().abs() * 7).long() % x.shape[-1]
        found = torch.zeros_like(x).scatter_reduce(1, at, x, "amax", include_self=False)
        return found + x.gather(1, at) + torch.zeros_like(x).index_add(1, at[0], x)


class Cumulative(Hard):
    def between(self, x: Tensor) -> Tensor:
        return x.cumsum(-1) / 8 + x.logcumsumexp(-1) / 8 + x.sigmoid().cumprod(-1) + x.cummax(-1).values


class Einsum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k = nn.Parameter(torch.randn(4, WIDTH, 4) / 4), nn.Parameter(torch.randn(4, WIDTH, 4) / 4)
        self.v, self.o = nn.Parameter(torch.randn(4, WIDTH, 4) / 4), nn.Parameter(torch.randn(4, 4, CLASSES) / 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        score = torch.einsum("bsd,hde,btf,hfe->bhst", x, self.q, x, self.k).softmax(-1)
        out = torch.einsum("bhst,btd,hde,hec->bsc", score, x, self.v, self.o)
        return nn.functional.cross_entropy(out.mean(1), y)


class Unfolded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(WIDTH * 3, CLASSES)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        windows = x.unfold(1, 3, 1).flatten(2)
        strided = x.as_strided((x.shape[0], 4, WIDTH * 3), (6 * WIDTH, WIDTH, 1))
        return nn.functional.cross_entropy(self.last(windows + strided).mean(1), y)


class Where(Hard):
    """`where`, `masked_select` by weights, `nan_to_num`, and a gradient through `abs` at 0."""

    def between(self, x: Tensor) -> Tensor:
        safe = torch.where(x > 0, x, torch.zeros_like(x)).sqrt().nan_to_num()
        return torch.where(x > 0, safe, x.abs().neg())


class Linalg(Hard):
    """Decompositions of a small matrix of the weights."""

    def between(self, x: Tensor) -> Tensor:
        square = self.first.weight[:WIDTH] @ self.first.weight[:WIDTH].t() + torch.eye(WIDTH)
        whitened = torch.linalg.solve(square, x[:, :WIDTH].t()).t()
        return torch.cat([whitened, x[:, WIDTH:] * torch.linalg.cholesky(square).diagonal()], -1)


class Padded(Hard):
    """`pad_sequence`-like padding, roll, repeat_interleave, tile."""

    def between(self, x: Tensor) -> Tensor:
        wide = nn.functional.pad(x, (1, 2), value=0.5)[:, 1:-2].roll(3, -1)
        return wide + x[:, ::2].repeat_interleave(2, -1) + x[:, :8].tile(4)


class Bmm(nn.Module):
    """Weights made of the input: a hypernetwork."""

    def __init__(self) -> None:
        super().__init__()
        self.make, self.last = nn.Linear(WIDTH, WIDTH * 4), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        weights = self.make(x.mean(1)).view(-1, WIDTH, 4)
        return nn.functional.cross_entropy(self.last(torch.bmm(x, weights).tanh().mean(1)), y)


class Mapped(Hard):
    """`torch.func.vmap` over the samples."""

    def between(self, x: Tensor) -> Tensor:
        return torch.func.vmap(lambda row: row * row.softmax(0).max())(x)


class Looped(Hard):
    """A Python loop over the samples, stacked again."""

    def between(self, x: Tensor) -> Tensor:
        return torch.stack([row * (1 + row.norm()) for row in x])


class Iou(Hard):
    """A loss of sums over the batch that is no mean of samples: soft Dice."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        share = self.last(self.first(x).relu()).softmax(-1)
        hot = nn.functional.one_hot(y, CLASSES)
        return 1 - (2 * (share * hot).sum() + 1) / (share.sum() + hot.sum() + 1)


class SumLoss(Hard):
    """A sum, not a mean, over the batch."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.last(self.first(x).relu()), y, reduction="sum")


class Smoothed(Hard):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        weight = torch.linspace(0.5, 1.5, CLASSES)
        return nn.functional.cross_entropy(
            self.last(self.first(x).relu()), y, weight=weight, label_smoothing=0.1, ignore_index=2
        )


class Double(Hard):
    """float64 inside, float32 outside."""

    def between(self, x: Tensor) -> Tensor:
        return (x.double().exp().sum(-1, keepdim=True).log() - x).float().relu()


class Ctc(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        logp = self.last(x).log_softmax(-1).transpose(0, 1)
        sizes = torch.full((x.shape[0],), 6)
        return nn.functional.ctc_loss(logp, y.clamp(min=1)[:, None], sizes, torch.ones_like(sizes))


ENTRIES = [
    entry("in-place-scalars", InPlaceScalars),
    entry("slice-writes", SliceWrites),
    entry("complex-slice-writes", Fourier, sequences),
    entry("topk-sort-scatter", Sorted),
    entry("sort-over-batch", BatchSorted, also=PARTS),
    entry("gather-scatter", Scattered),
    entry("cumulative", Cumulative),
    entry("einsum", Einsum, sequences),
    entry("unfold-as-strided", Unfolded, sequences),
    entry("where-nan", Where),
    entry("linalg", Linalg),
    entry("pad-roll-repeat", Padded),
    entry("hypernetwork", Bmm, sequences),
    entry("vmap", Mapped),
    entry("loop-over-samples", Looped),
    entry("dice-loss", Iou, also=PARTS),
    entry("sum-loss", SumLoss, also=PARTS),
    entry("smoothed-weighted-loss", Smoothed, also=PARTS),
    entry("float64-inside", Double),
    entry("ctc", Ctc, sequences),
]
