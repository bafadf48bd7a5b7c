"""Layers of two kinds whose ops are counted, and small models of them: what a host needs for whole steps, besides what
it needs for single ops (`host`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meshwright.models.moe import Experts

LAYERS, DEEP = 4, 12


class Block(nn.Module):
    """A transformer's layer: 10 modules."""

    def __init__(self, hidden: int = 128) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.query, self.key, self.value, self.out = (nn.Linear(hidden, hidden) for _ in range(4))
        self.up, self.down = nn.Linear(hidden, hidden), nn.Linear(hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        q, k, v = (t.view(4, 64, 2, 64).transpose(1, 2) for t in (self.query(y), self.key(y), self.value(y)))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(4, 64, 128)
        x = x + self.out(y)
        y = x + self.down(F.gelu(self.up(self.norm2(x))))
        assert isinstance(y, Tensor)
        return y


class ConvBlock(nn.Module):
    """A residual block: 3 modules."""

    def __init__(self, channels: int = 64) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.norm(self.conv(x)))


class PlainBlock(nn.Module):
    """A perceptron's layer: 2 modules."""

    def __init__(self, hidden: int = 128) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.linear(x))


class Scale(nn.Module):
    """Next to nothing: what is left is paid once in a step."""

    def __init__(self, hidden: int = 128) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


class MixtureBlock(Block):
    """The same with eight experts behind it: 12 modules."""

    def __init__(self, hidden: int = 128) -> None:
        super().__init__(hidden)
        self.experts = Experts(hidden, hidden, experts=8, top=2, gated=True, balanced=False)

    def forward(self, x: Tensor) -> Tensor:
        x = super().forward(x)
        y = x + self.experts(x)[0]
        assert isinstance(y, Tensor)
        return y


@dataclass(frozen=True)
class Kind:
    """A block, the host figures that its forward adds up to, gradients summed in backward, parameters, its input."""

    block: Callable[[], nn.Module]
    ops: Mapping[str, int]
    sums: int
    tensors: int
    shape: tuple[int, ...]


_LAYER = {"layer_norm": 2, "linear": 6, "view": 4, "transpose": 4, "attention": 1, "gelu": 1, "added": 2, "module": 9}
_CONV = {"convolution": 1, "batch_norm": 1, "scaled": 1, "added": 1, "relu": 1, "module": 3}
KINDS = (Kind(Block, _LAYER, 4, 16, (4, 64, 128)), Kind(ConvBlock, _CONV, 1, 3, (2, 64, 16, 16)))
_ROUTER = {"view": 2, "linear_flat": 1, "cast": 1, "softmax": 1, "topk": 1, "column_sum": 1, "binary": 1}
_EXPERTS = _ROUTER | {"binary": 2, "chunk": 1, "silu": 1, "added": 1, "module": 2}
MIXTURE = Kind(MixtureBlock, _EXPERTS, 2, 19, (4, 64, 128))
"""Its ops besides those of a transformer's layer, but for the grouped products and what brings tokens to them."""
PLAIN = Kind(PlainBlock, {"linear_flat": 1, "relu": 1, "module": 2}, 0, 2, (256, 128))
LEAST = Kind(Scale, {"multiply": 1, "module": 2, "mean": 1}, 0, 1, (4, 64, 128))


def phases(
    kind: Kind, layers: int, device: torch.device, dtype: torch.dtype, steps: int = 5, warm: int = 8
) -> Callable[[], list[float]]:
    """Of a small model; each call gives the middle host seconds of a step's forward, backward and optimizer."""
    model = nn.Sequential(*(kind.block() for _ in range(layers))).to(device=device, dtype=dtype)
    x = torch.randn(kind.shape, device=device).to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)

    def step() -> tuple[float, float, float]:
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        loss = model(x).mean()
        middle = time.perf_counter()
        loss.backward()
        end = time.perf_counter()
        optimizer.step()
        return middle - start, end - middle, time.perf_counter() - end

    for _ in range(warm):
        step()
    return lambda: [median(column) for column in zip(*(step() for _ in range(steps)), strict=True)]
