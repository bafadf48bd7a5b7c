"""A diffusion U-Net, loss included: what the way down computes is read again, in reverse, on the way up."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def time_features(times: Tensor, size: int) -> Tensor:
    rates = torch.exp(-math.log(10000.0) * torch.arange(size // 2, device=times.device) / (size // 2))
    angles = times.float()[:, None] * rates[None, :]
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


class ResidualBlock(nn.Module):
    def __init__(self, channels: int, out: int, time: int, groups: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(groups, channels)
        self.conv1 = nn.Conv2d(channels, out, 3, padding=1)
        self.time = nn.Linear(time, out)
        self.norm2 = nn.GroupNorm(groups, out)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1)
        self.shortcut = nn.Conv2d(channels, out, 1) if channels != out else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        y = self.conv1(F.silu(self.norm1(x))) + self.time(time)[:, :, None, None]
        return self.shortcut(x) + self.conv2(F.silu(self.norm2(y)))


class SelfAttention(nn.Module):
    """Every pixel looks at every other, on the coarsest level."""

    def __init__(self, channels: int, heads: int, groups: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.GroupNorm(groups, channels)
        self.query = nn.Linear(channels, channels)
        self.key = nn.Linear(channels, channels)
        self.value = nn.Linear(channels, channels)
        self.out = nn.Linear(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x).flatten(2).transpose(1, 2)

        def split(t: Tensor) -> Tensor:
            return t.view(*t.shape[:2], self.heads, -1).transpose(1, 2)

        y = F.scaled_dot_product_attention(split(self.query(y)), split(self.key(y)), split(self.value(y)))
        return x + self.out(y.transpose(1, 2).flatten(2)).transpose(1, 2).reshape(x.shape)


class UNet(nn.Module):
    """Level i has `width << i` channels and `blocks` residual blocks each way; the loss is that of predicted noise."""

    def __init__(self, width: int, levels: int, blocks: int, heads: int, channels: int, groups: int = 4) -> None:
        super().__init__()
        self.width, time = width, 4 * width
        self.time = nn.Sequential(nn.Linear(width, time), nn.SiLU(), nn.Linear(time, time), nn.SiLU())
        self.stem = nn.Conv2d(channels, width, 3, padding=1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        now, skips = width, [width]
        for level in range(levels):
            for _ in range(blocks):
                self.down.append(ResidualBlock(now, width << level, time, groups))
                now = width << level
                skips.append(now)
            if level + 1 < levels:
                self.down.append(nn.Conv2d(now, now, 3, stride=2, padding=1))
                skips.append(now)
        self.middle1 = ResidualBlock(now, now, time, groups)
        self.attention = SelfAttention(now, heads, groups)
        self.middle2 = ResidualBlock(now, now, time, groups)
        for level in reversed(range(levels)):
            for _ in range(blocks + 1):
                self.up.append(ResidualBlock(now + skips.pop(), width << level, time, groups))
                now = width << level
            if level:
                self.up.append(nn.ConvTranspose2d(now, now, 2, stride=2))
        self.norm = nn.GroupNorm(groups, now)
        self.out = nn.Conv2d(now, channels, 3, padding=1)

    def forward(self, images: Tensor, times: Tensor, noise: Tensor) -> Tensor:
        time = self.time(time_features(times, self.width).to(images.dtype))
        x = self.stem(images)
        skips = [x]
        for module in self.down:
            x = module(x, time) if isinstance(module, ResidualBlock) else module(x)
            skips.append(x)
        x = self.middle2(self.attention(self.middle1(x, time)), time)
        for module in self.up:
            is_block = isinstance(module, ResidualBlock)
            x = module(torch.cat([x, skips.pop()], dim=1), time) if is_block else module(x)
        return F.mse_loss(self.out(F.silu(self.norm(x))), noise)
