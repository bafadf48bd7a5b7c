"""What a host needs for whole steps, beside what it needs for single ops asked for again and again.

In a loop an op's code is at hand; in a model it comes after other code, through modules. Two small models are trained
whose ops are counted here; the ratio of a step to the sum of its ops is what a host's figures are multiplied by.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LAYERS = 4
Pair = tuple[float, float]


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

    def __init__(self, channels: int = 32) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.norm(self.conv(x)))


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
KINDS = (Kind(Block, _LAYER, 4, 16, (4, 64, 128)), Kind(ConvBlock, _CONV, 1, 3, (4, 32, 16, 16)))


def eager_factors(
    device: torch.device, dtype: torch.dtype, host: Mapping[str, list[float]], optimizer_s: Pair
) -> list[float]:
    """By how much a step's forward, backward and optimizer take longer than the sum of their parts.

    optimizer_s: host seconds of a step of AdamW, fixed and for each tensor.
    """
    ratios: list[list[float]] = []
    for kind in KINDS:
        forward_s = sum(count * host[name][0] for name, count in kind.ops.items())
        # A count of batches, which BatchNorm keeps, has no gradient.
        backward_s = sum(count * host[name][1] for name, count in kind.ops.items() if name != "scaled")
        backward_s += kind.sums * host["add"][0]
        parts = (
            LAYERS * forward_s + host["mean"][0],
            LAYERS * backward_s + host["mean"][1] + host["start"][1],
            optimizer_s[0] + LAYERS * kind.tensors * optimizer_s[1],
        )
        took = _phases(nn.Sequential(*(kind.block() for _ in range(LAYERS))), kind.shape, device, dtype)
        ratios.append([real / sum_s for real, sum_s in zip(took, parts, strict=True)])
    return [float(f"{(a * b) ** 0.5:.4g}") for a, b in zip(*ratios, strict=True)]


def probe_s(device: torch.device) -> float:
    """Host seconds of a small step: how fast the host is now, where its speed changes from minute to minute."""
    kind = KINDS[0]
    return sum(_phases(nn.Sequential(*(kind.block() for _ in range(LAYERS))), kind.shape, device, torch.float32, 15, 5))


def _phases(
    model: nn.Module, shape: tuple[int, ...], device: torch.device, dtype: torch.dtype, steps: int = 40, warm: int = 10
) -> list[float]:
    """Median host seconds of a step's forward, backward and optimizer."""
    model = model.to(device=device, dtype=dtype)
    x = torch.randn(shape, device=device).to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    rows = []
    for _ in range(steps):
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        loss = model(x).mean()
        middle = time.perf_counter()
        loss.backward()
        end = time.perf_counter()
        optimizer.step()
        rows.append((middle - start, end - middle, time.perf_counter() - end))
    return [median(row[phase] for row in rows[warm:]) for phase in range(3)]
