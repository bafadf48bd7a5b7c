"""A residual convolutional network (He et al.), loss included: bottleneck blocks and BatchNorm.

`factor` widens what the 3x3 convolutions make, as in Alpa's wide ResNets.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class Bottleneck(nn.Module):
    expansion = 4

    def __init__(self, channels: int, width: int, stride: int, factor: int = 1) -> None:
        super().__init__()
        out, wide = width * self.expansion, width * factor
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, wide, 3, stride=stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(wide)
        self.conv3 = nn.Conv2d(wide, out, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(out)
        self.shortcut: nn.Module | None = None
        if stride != 1 or channels != out:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, out, 1, stride=stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        y = F.relu(self.norm2(self.conv2(y)))
        y = self.norm3(self.conv3(y))
        return F.relu(y + (x if self.shortcut is None else self.shortcut(x)))


class ResNet(nn.Module):
    def __init__(self, blocks: tuple[int, ...], width: int, classes: int, factor: int = 1) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
        self.norm = nn.BatchNorm2d(width)
        channels, stages = width, []
        for stage, count in enumerate(blocks):
            for index in range(count):
                stride = 2 if stage > 0 and index == 0 else 1
                stages.append(Bottleneck(channels, width << stage, stride, factor))
                channels = (width << stage) * Bottleneck.expansion
        self.layers = nn.ModuleList(stages)
        self.head = nn.Linear(channels, classes)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.stem(images))), 3, stride=2, padding=1)
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(x.mean(dim=(2, 3))), labels)
