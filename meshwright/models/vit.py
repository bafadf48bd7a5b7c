"""A vision transformer, loss included: patches by a convolution, a class token, pre-norm blocks."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meshwright.models.gpt import Block


class ViT(nn.Module):
    def __init__(
        self,
        layers: int,
        hidden: int,
        heads: int,
        ffn: int,
        patch: int,
        image: int,
        classes: int,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, hidden, patch, stride=patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, hidden))
        self.positions = nn.Parameter(torch.empty(1, (image // patch) ** 2 + 1, hidden))
        nn.init.normal_(self.positions, std=0.02)
        blocks = (Block(hidden, heads, ffn, causal=False, dropout=dropout) for _ in range(layers))
        self.layers = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, classes)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(x.shape[0], -1, -1), x], dim=1) + self.positions
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(self.norm(x)[:, 0]), labels)
