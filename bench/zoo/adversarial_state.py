"""Buffers and parameters that forward changes, and parametrizations that keep state."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from bench.zoo.hard import CLASSES, PARTS, WIDTH, Hard, entry, images, vectors, words


class OutBuffer(Hard):
    """A running mean written by `out=`."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(2 * WIDTH))

    def between(self, x: Tensor) -> Tensor:
        torch.add(0.9 * self.mean, x.detach().mean(0), alpha=0.1, out=self.mean)
        return (x - self.mean).relu()


class Reassigned(Hard):
    """A buffer that is assigned a new tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(2 * WIDTH))

    def between(self, x: Tensor) -> Tensor:
        self.centre = 0.5 * self.centre + 0.5 * x.detach().mean(0)
        return (x - self.centre).relu()


class Copied(Hard):
    """A buffer written by `copy_` and by a slice."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.zeros(2, 2 * WIDTH))

    def between(self, x: Tensor) -> Tensor:
        self.kept[0].copy_(x.detach().amax(0))
        self.kept[1:] = x.detach().mean(0)
        return x - self.kept.mean(0)


class StepCounter(Hard):
    """A counter in a buffer that warms the output up."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def between(self, x: Tensor) -> Tensor:
        self.steps += 1
        return x.relu() * (self.steps / 10.0)


class PlainTensor(Hard):
    """State in a tensor that is no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.ones(())

    def between(self, x: Tensor) -> Tensor:
        self.scale.mul_(0.9)
        return x.relu() * self.scale


class Queue(Hard):
    """MoCo's queue: a pointer and rows of earlier batches."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("queue", torch.randn(24, 2 * WIDTH))
        self.register_buffer("pointer", torch.zeros((), dtype=torch.long))

    def between(self, x: Tensor) -> Tensor:
        score = (x @ self.queue.clone().t()).softmax(-1)
        at = (self.pointer + torch.arange(x.shape[0])) % 24
        self.queue.index_copy_(0, at, x.detach())
        self.pointer.copy_((self.pointer + x.shape[0]) % 24)
        return x + score @ self.queue


class Byol(nn.Module):
    """An EMA target that forward updates; the target has no gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.online = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
        self.target = copy.deepcopy(self.online).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            for mine, theirs in zip(self.target.parameters(), self.online.parameters(), strict=True):
                mine.mul_(0.9).add_(theirs, alpha=0.1)
            wanted = self.target(x)
        return nn.functional.mse_loss(self.online(x), wanted)


class Codebook(nn.Module):
    """A quantiser whose codes are an EMA of what they stand for."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(WIDTH, 8), nn.Linear(8, WIDTH)
        self.register_buffer("codes", torch.randn(5, 8))
        self.register_buffer("counts", torch.ones(5))

    def forward(self, x: Tensor) -> Tensor:
        z = self.encode(x)
        picked = nn.functional.one_hot(torch.cdist(z, self.codes).argmin(-1), 5).type_as(z)
        q = picked @ self.codes
        if self.training:
            with torch.no_grad():
                self.counts.mul_(0.9).add_(picked.sum(0), alpha=0.1)
                self.codes.lerp_((picked.t() @ z) / self.counts.clamp(min=1)[:, None], 0.1)
        straight = z + (q - z).detach()
        return nn.functional.mse_loss(self.decode(straight), x) + 0.25 * nn.functional.mse_loss(z, q.detach())


def _normed(norm: nn.Module) -> nn.Module:
    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm, self.last = nn.Conv2d(3, 8, 3, padding=1), norm, nn.Linear(8, CLASSES)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return nn.functional.cross_entropy(self.last(self.norm(self.conv(x)).relu().mean((2, 3))), y)

    return Normed()


class Embedded(nn.Module):
    """A table whose rows forward renormalises, or whose gradient is not the plain one."""

    def __init__(self, **settings: object) -> None:
        super().__init__()
        self.table, self.last = nn.Embedding(12, WIDTH, **settings), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.last(self.table(x).mean(1)), y)


class Twice(nn.Module):
    """Its double is what the layer computes with."""

    def forward(self, weight: Tensor) -> Tensor:
        return 2.0 * weight.tanh()


def _parametrized(how: str) -> Hard:
    model = Hard()
    if how == "weight_norm":
        parametrizations.weight_norm(model.first)
    elif how == "old weight_norm":
        nn.utils.weight_norm(model.first)
    elif how == "spectral_norm":
        parametrizations.spectral_norm(model.first)
    elif how == "old spectral_norm":
        nn.utils.spectral_norm(model.first)
    elif how == "orthogonal":
        parametrizations.orthogonal(model.first)
    else:
        parametrize.register_parametrization(model.first, "weight", Twice())
    return model


ENTRIES = [
    entry("out-buffer", OutBuffer, also=PARTS),
    entry("reassigned-buffer", Reassigned),
    entry("copied-buffer", Copied),
    entry("step-counter", StepCounter, also=PARTS),
    entry("state-in-plain-tensor", PlainTensor),
    entry("queue", Queue, also=PARTS),
    entry("byol-ema", Byol, lambda: {"x": vectors()["x"]}),
    entry("codebook-ema", Codebook, lambda: {"x": vectors()["x"]}),
    entry("batchnorm", lambda: _normed(nn.BatchNorm2d(8)), images),
    entry("batchnorm-momentum-none", lambda: _normed(nn.BatchNorm2d(8, momentum=None)), images),
    entry("batchnorm-untracked", lambda: _normed(nn.BatchNorm2d(8, track_running_stats=False)), images),
    entry("syncbatchnorm", lambda: _normed(nn.SyncBatchNorm(8)), images),
    entry("instancenorm-tracked", lambda: _normed(nn.InstanceNorm2d(8, affine=True, track_running_stats=True)), images),
    entry("max-norm", lambda: Embedded(max_norm=0.5), words),
    entry("scale-grad-by-freq", lambda: Embedded(scale_grad_by_freq=True), words, also=PARTS),
    entry("sparse-embedding", lambda: Embedded(sparse=True), words, optimizer="sgd"),
    entry("padding-idx", lambda: Embedded(padding_idx=3), words),
    entry("weight-norm", lambda: _parametrized("weight_norm")),
    entry("weight-norm-old", lambda: _parametrized("old weight_norm")),
    entry("spectral-norm", lambda: _parametrized("spectral_norm")),
    entry("spectral-norm-old", lambda: _parametrized("old spectral_norm")),
    entry("orthogonal", lambda: _parametrized("orthogonal")),
    entry("own-parametrization", lambda: _parametrized("own")),
]
