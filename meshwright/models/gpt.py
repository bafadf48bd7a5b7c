"""A GPT-2 style decoder, loss included: learned positions, pre-norm blocks, tied or untied head."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def tie_and_draw(model: nn.Module, head: nn.Linear, tokens: nn.Embedding, tied: bool = True) -> None:
    """The head has the table's weight if tied; all matrices and tables are drawn as GPT-2's."""
    if tied:
        head.weight = tokens.weight
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)


def dropout_of(rate: float) -> nn.Module:
    return nn.Dropout(rate) if rate else nn.Identity()


class Attention(nn.Module):
    def __init__(self, hidden: int, heads: int, causal: bool = True) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.query = nn.Linear(hidden, hidden)
        self.key = nn.Linear(hidden, hidden)
        self.value = nn.Linear(hidden, hidden)
        self.out = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        batch, seq, hidden = x.shape

        def split(t: Tensor) -> Tensor:
            return t.view(batch, seq, self.heads, -1).transpose(1, 2)

        y = F.scaled_dot_product_attention(
            split(self.query(x)), split(self.key(x)), split(self.value(x)), is_causal=self.causal
        )
        return self.out(y.transpose(1, 2).reshape(batch, seq, hidden))


class Block(nn.Module):
    def __init__(self, hidden: int, heads: int, ffn: int, causal: bool = True, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(hidden)
        self.attention = Attention(hidden, heads, causal)
        self.norm2 = nn.LayerNorm(hidden)
        self.up = nn.Linear(hidden, ffn)
        self.down = nn.Linear(ffn, hidden)
        self.dropout = dropout_of(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.norm1(x)))
        return x + self.dropout(self.down(F.gelu(self.up(self.norm2(x)))))


class GPT(nn.Module):
    def __init__(
        self,
        layers: int,
        hidden: int,
        heads: int,
        ffn: int,
        vocab: int,
        seq: int,
        tied: bool,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab, hidden)
        self.positions = nn.Embedding(seq, hidden)
        self.layers = nn.ModuleList(Block(hidden, heads, ffn, dropout=dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, vocab, bias=False)
        tie_and_draw(self, self.head, self.tokens, tied)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.positions(positions)
        for layer in self.layers:
            x = layer(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())
