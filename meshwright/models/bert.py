"""A BERT style encoder, masked language-model loss included: post-norm blocks, tied head with a transform."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meshwright.models.gpt import Attention, dropout_of, tie_and_draw


class Block(nn.Module):
    def __init__(self, hidden: int, heads: int, ffn: int, dropout: float) -> None:
        super().__init__()
        self.attention = Attention(hidden, heads, causal=False)
        self.norm1 = nn.LayerNorm(hidden)
        self.up = nn.Linear(hidden, ffn)
        self.down = nn.Linear(ffn, hidden)
        self.norm2 = nn.LayerNorm(hidden)
        self.dropout = dropout_of(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(x + self.dropout(self.attention(x)))
        return self.norm2(x + self.dropout(self.down(F.gelu(self.up(x)))))


class Bert(nn.Module):
    """Targets of -100 are positions that were not masked and do not count."""

    def __init__(
        self, layers: int, hidden: int, heads: int, ffn: int, vocab: int, seq: int, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab, hidden)
        self.positions = nn.Embedding(seq, hidden)
        self.norm = nn.LayerNorm(hidden)
        self.layers = nn.ModuleList(Block(hidden, heads, ffn, dropout) for _ in range(layers))
        self.transform = nn.Linear(hidden, hidden)
        self.transform_norm = nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, vocab)
        tie_and_draw(self, self.head, self.tokens)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.norm(self.tokens(tokens) + self.positions(positions))
        for layer in self.layers:
            x = layer(x)
        x = self.transform_norm(F.gelu(self.transform(x)))
        return F.cross_entropy(self.head(x).flatten(0, 1), targets.flatten())
