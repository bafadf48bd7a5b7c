"""What is done to gradients: hooks, own functions, detaching, double backward, checkpoints, ties."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bench.zoo.hard import PARTS, WIDTH, Hard, entry


class TensorHook(Hard):
    def between(self, x: Tensor) -> Tensor:
        x.register_hook(lambda grad: grad * 0.5)
        return x.relu()


def _halve(parameter: Tensor) -> None:
    parameter.grad.mul_(0.5)  # type: ignore[union-attr]


def _hooked(kind: str) -> Hard:
    model = Hard()
    if kind == "parameter":
        model.first.weight.register_hook(lambda grad: grad * 0.5)
    elif kind == "accumulate":
        model.first.weight.register_post_accumulate_grad_hook(_halve)
    elif kind == "backward":
        model.first.register_full_backward_hook(
            lambda module, into, out: (into[0] * 0.5,) if into[0] is not None else None
        )
    elif kind == "backward pre":
        model.first.register_full_backward_pre_hook(lambda module, out: (out[0] * 0.5,))
    elif kind == "forward":
        model.first.register_forward_hook(lambda module, into, out: out * 0.5)
    else:
        model.first.register_forward_pre_hook(lambda module, into: (into[0] * 0.5,))
    return model


class Reversal(torch.autograd.Function):
    """Domain adaptation: backward is minus the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return -0.3 * grad


class Rounded(torch.autograd.Function):
    """A rounding whose backward is the identity inside a range."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return (x * 4).round() / 4

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad * (x.abs() < 1)


class Reversed(Hard):
    def between(self, x: Tensor) -> Tensor:
        return Reversal.apply(x).relu()


class Quantised(Hard):
    def between(self, x: Tensor) -> Tensor:
        return Rounded.apply(x)


class StraightThrough(Hard):
    def between(self, x: Tensor) -> Tensor:
        return x + (x.sign() - x).detach()


class Detached(Hard):
    """A factor that passes no gradient, and a part under `no_grad`."""

    def between(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            scale = x.std(0)
        return x.relu() * scale + x.detach().abs()


class Penalty(Hard):
    """A gradient penalty: the loss holds a gradient of the model."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        score = self.last(self.first(x).tanh())
        (grad,) = torch.autograd.grad(score.sum(), x, create_graph=True)
        return nn.functional.cross_entropy(score, y) + 0.1 * grad.pow(2).sum(-1).mean()


class Checkpointed(Hard):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = checkpoint(lambda t: self.first(t).tanh(), x.requires_grad_(), use_reentrant=self.reentrant)
        return nn.functional.cross_entropy(self.last(h), y)


class Tied(nn.Module):
    """One weight used as a table, as a head, and transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(12, WIDTH), nn.Linear(WIDTH, 12, bias=False)
        self.head.weight = self.table.weight

    def forward(self, x: Tensor) -> Tensor:
        h = self.table(x)
        h = (h @ self.table.weight.t()).softmax(-1) @ self.table.weight
        return nn.functional.cross_entropy(self.head(h).flatten(0, 1), x.roll(-1, 1).flatten())


class Unused(Hard):
    """Parameters that forward does not read, and one it reads without effect."""

    def __init__(self) -> None:
        super().__init__()
        self.spare, self.silent = nn.Linear(4, 4), nn.Parameter(torch.ones(3))

    def between(self, x: Tensor) -> Tensor:
        return x.relu() + 0.0 * self.silent.sum()


class SharedLayer(Hard):
    """One layer called three times."""

    def __init__(self) -> None:
        super().__init__()
        self.again = nn.Linear(2 * WIDTH, 2 * WIDTH)

    def between(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = self.again(x).tanh()
        return x


class Contrastive(nn.Module):
    """SimCLR's loss over all pairs of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(WIDTH, 32), nn.ReLU(), nn.Linear(32, 8))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        a = nn.functional.normalize(self.net(x), dim=-1)
        b = nn.functional.normalize(self.net(x + 0.1 * x.roll(1, -1)), dim=-1)
        return nn.functional.cross_entropy(a @ b.t() / 0.2, torch.arange(x.shape[0]))


class Barlow(nn.Module):
    """A cross-correlation over the batch, with batch statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(WIDTH, 32), nn.ReLU(), nn.Linear(32, 8))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        a, b = self.net(x), self.net(x.flip(-1))
        a, b = (a - a.mean(0)) / (a.std(0) + 1e-3), (b - b.mean(0)) / (b.std(0) + 1e-3)
        c = a.t() @ b / x.shape[0]
        return (c - torch.eye(8)).pow(2).sum()


class ManualGradient(Hard):
    """Calls backward inside forward."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        loss = super().forward(x, y)
        loss.backward(retain_graph=True)
        return loss


ENTRIES = [
    entry("tensor-hook", TensorHook),
    entry("parameter-hook", lambda: _hooked("parameter")),
    entry("post-accumulate-hook", lambda: _hooked("accumulate")),
    entry("full-backward-hook", lambda: _hooked("backward")),
    entry("full-backward-pre-hook", lambda: _hooked("backward pre")),
    entry("forward-hook", lambda: _hooked("forward")),
    entry("forward-pre-hook", lambda: _hooked("forward pre")),
    entry("gradient-reversal", Reversed),
    entry("rounded-function", Quantised),
    entry("straight-through", StraightThrough),
    entry("detach", Detached),
    entry("gradient-penalty", Penalty),
    entry("checkpoint", lambda: Checkpointed(False)),
    entry("checkpoint-reentrant", lambda: Checkpointed(True)),
    entry("tied-weights", Tied, lambda: {"x": torch.randint(0, 12, (8, 6))}),
    entry("unused-parameters", Unused),
    entry("shared-layer", SharedLayer),
    entry("contrastive", Contrastive, also=PARTS),
    entry("barlow-twins", Barlow, also=PARTS),
    entry("backward-in-forward", ManualGradient),
]
