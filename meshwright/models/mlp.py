"""A plain multilayer perceptron, loss included."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class MLP(nn.Module):
    def __init__(self, layers: int, inputs: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.enter = nn.Linear(inputs, hidden)
        self.layers = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(layers))
        self.head = nn.Linear(hidden, classes)

    def forward(self, features: Tensor, labels: Tensor) -> Tensor:
        x = F.relu(self.enter(features))
        for layer in self.layers:
            x = F.relu(layer(x))
        return F.cross_entropy(self.head(x), labels)
