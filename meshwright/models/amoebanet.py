"""AmoebaNet-D (Real et al., as GPipe uses it), loss included: cells of uneven cost, each reading the two before it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Edge = tuple[int, str]

NORMAL: tuple[Edge, ...] = (
    (1, "conv_1x1"), (1, "max_3x3"), (1, "none"), (0, "conv_1x7_7x1"), (0, "conv_1x1"),
    (0, "conv_1x7_7x1"), (2, "max_3x3"), (2, "none"), (1, "average_3x3"), (5, "conv_1x1"),
)  # fmt: skip
NORMAL_OUT = (0, 3, 4, 6)
REDUCTION: tuple[Edge, ...] = (
    (0, "max_2x2"), (0, "max_3x3"), (2, "none"), (1, "conv_3x3"), (2, "conv_1x7_7x1"),
    (2, "max_3x3"), (3, "none"), (1, "max_2x2"), (2, "average_3x3"), (3, "conv_1x1"),
)  # fmt: skip
REDUCTION_OUT = (4, 5, 6)
"""Ten edges, two into each of five inner states: (the state read, the operation). States 0 and 1 are the inputs."""


class Conv(nn.Module):
    """ReLU, convolutions, BatchNorm; the last convolution takes the stride."""

    def __init__(self, channels: int, out: int, *kernels: tuple[int, int], stride: int = 1) -> None:
        super().__init__()
        strides = [(stride if h > 1 else 1, stride if w > 1 else 1) for h, w in kernels]
        if kernels == ((1, 1),):
            strides = [(stride, stride)]
        layers = (
            nn.Conv2d(channels if i == 0 else out, out, kernel, step, (kernel[0] // 2, kernel[1] // 2), bias=False)
            for i, (kernel, step) in enumerate(zip(kernels, strides, strict=True))
        )
        self.layers = nn.Sequential(*layers)
        self.norm = nn.BatchNorm2d(out)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.layers(F.relu(x)))


class Factorized(nn.Module):
    """Halves an image without losing every other pixel: two strided convolutions, one of them shifted."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.even = nn.Conv2d(channels, out // 2, 1, stride=2, bias=False)
        self.odd = nn.Conv2d(channels, out - out // 2, 1, stride=2, bias=False)
        self.norm = nn.BatchNorm2d(out)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(x)
        shifted = F.pad(x, (0, 1, 0, 1))[:, :, 1:, 1:]
        return self.norm(torch.cat([self.even(x), self.odd(shifted)], dim=1))


class Pool(nn.Module):
    def __init__(self, kind: str, stride: int) -> None:
        super().__init__()
        self.kind, self.stride = kind, stride

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "max_2x2":
            return F.max_pool2d(x, 2, self.stride)
        if self.kind == "max_3x3":
            return F.max_pool2d(x, 3, self.stride, 1)
        return F.avg_pool2d(x, 3, self.stride, 1, count_include_pad=False)


def edge(kind: str, channels: int, stride: int) -> nn.Module:
    if kind == "none":
        return nn.Identity() if stride == 1 else Factorized(channels, channels)
    if kind == "conv_1x1":
        return Conv(channels, channels, (1, 1), stride=stride)
    if kind == "conv_3x3":
        return Conv(channels, channels, (3, 3), stride=stride)
    if kind == "conv_1x7_7x1":
        return Conv(channels, channels, (1, 7), (7, 1), stride=stride)
    return Pool(kind, stride)


class Cell(nn.Module):
    """before_channels, channels: of the cell before the last one, and of the last one."""

    def __init__(self, before_channels: int, channels: int, width: int, reduces: bool, after_reduction: bool) -> None:
        super().__init__()
        self.edges = REDUCTION if reduces else NORMAL
        self.out: tuple[int, ...] = REDUCTION_OUT if reduces else NORMAL_OUT
        self.enter = Conv(channels, width, (1, 1))
        if after_reduction:
            self.enter_before: nn.Module = Factorized(before_channels, width)
        else:
            self.enter_before = Conv(before_channels, width, (1, 1))
        steps = (edge(kind, width, 2 if reduces and source < 2 else 1) for source, kind in self.edges)
        self.steps = nn.ModuleList(steps)
        self.channels = width * len(self.out)

    def forward(self, before: Tensor, last: Tensor) -> Tensor:
        states = [self.enter(last), self.enter_before(before)]
        for i in range(0, len(self.edges), 2):
            left, right = (self.steps[j](states[self.edges[j][0]]) for j in (i, i + 1))
            states.append(left + right)
        return torch.cat([states[i] for i in self.out], dim=1)


class AmoebaNet(nn.Module):
    """layers: normal cells, a third of them on each of three resolutions. width: channels inside the first of them."""

    def __init__(self, layers: int, width: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, stride=2, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        plan = [(width // 2, True), (width, True)] if width > 1 else [(width, True), (width, True)]
        for stage in range(3):
            plan += [(width << stage, False)] * (layers // 3)
            plan += [(width << (stage + 1), True)] if stage < 2 else []
        before, channels, after = width, width, False
        cells = []
        for inner, reduces in plan:
            cells.append(Cell(before, channels, inner, reduces, after))
            before, channels, after = channels, cells[-1].channels, reduces
        self.cells = nn.ModuleList(cells)
        self.head = nn.Linear(channels, classes)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        before = last = self.norm(self.stem(images))
        for cell in self.cells:
            before, last = last, cell(before, last)
        return F.cross_entropy(self.head(last.mean(dim=(2, 3))), labels)
