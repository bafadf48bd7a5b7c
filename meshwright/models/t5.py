"""A T5 style encoder and decoder, loss included: one relative position bias is shared by all layers of a side."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meshwright.models.gpt import dropout_of, tie_and_draw


class PositionBias(nn.Module):
    """A learned bias per head for each bucket of distances; far distances share logarithmic buckets."""

    def __init__(self, heads: int, buckets: int, causal: bool, farthest: int = 128) -> None:
        super().__init__()
        self.buckets, self.causal, self.farthest = buckets, causal, farthest
        self.weight = nn.Embedding(buckets, heads)

    def forward(self, seq: int, device: torch.device) -> Tensor:
        positions = torch.arange(seq, device=device)
        distance = positions[None, :] - positions[:, None]
        bias: Tensor = self.weight(self._bucket(distance)).permute(2, 0, 1).unsqueeze(0)
        return bias.masked_fill(distance > 0, float("-inf")) if self.causal else bias

    def _bucket(self, distance: Tensor) -> Tensor:
        buckets, base = self.buckets, torch.zeros_like(distance)
        if self.causal:
            distance = (-distance).clamp(min=0)
        else:
            buckets //= 2
            base = (distance > 0).long() * buckets
            distance = distance.abs()
        near = buckets // 2
        scale = (buckets - near) / math.log(self.farthest / near)
        far = near + ((distance.clamp(min=1).float() / near).log() * scale).long()
        return base + torch.where(distance < near, distance, far.clamp(max=buckets - 1))


class Attention(nn.Module):
    def __init__(self, hidden: int, heads: int, head_dim: int) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.query = nn.Linear(hidden, heads * head_dim, bias=False)
        self.key = nn.Linear(hidden, heads * head_dim, bias=False)
        self.value = nn.Linear(hidden, heads * head_dim, bias=False)
        self.out = nn.Linear(heads * head_dim, hidden, bias=False)

    def forward(self, x: Tensor, context: Tensor, bias: Tensor | None) -> Tensor:
        def split(t: Tensor) -> Tensor:
            return t.view(*t.shape[:2], -1, self.head_dim).transpose(1, 2)

        query, key, value = split(self.query(x)), split(self.key(context)), split(self.value(context))
        y = F.scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=1.0)
        return self.out(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """cross: also attends to the encoder's output, which every decoder layer reads."""

    def __init__(self, hidden: int, heads: int, head_dim: int, ffn: int, cross: bool, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.RMSNorm(hidden, eps=1e-6)
        self.attention = Attention(hidden, heads, head_dim)
        self.norm2 = nn.RMSNorm(hidden, eps=1e-6) if cross else None
        self.cross = Attention(hidden, heads, head_dim) if cross else None
        self.norm3 = nn.RMSNorm(hidden, eps=1e-6)
        self.up = nn.Linear(hidden, ffn, bias=False)
        self.down = nn.Linear(ffn, hidden, bias=False)
        self.dropout = dropout_of(dropout)

    def forward(self, x: Tensor, bias: Tensor, encoded: Tensor | None = None) -> Tensor:
        y = self.norm1(x)
        x = x + self.dropout(self.attention(y, y, bias))
        if self.cross is not None and self.norm2 is not None:
            x = x + self.dropout(self.cross(self.norm2(x), encoded, None))
        return x + self.dropout(self.down(F.relu(self.up(self.norm3(x)))))


class Stack(nn.Module):
    def __init__(
        self, layers: int, hidden: int, heads: int, head_dim: int, ffn: int, buckets: int, cross: bool, dropout: float
    ) -> None:
        super().__init__()
        self.bias = PositionBias(heads, buckets, causal=cross)
        self.layers = nn.ModuleList(Block(hidden, heads, head_dim, ffn, cross, dropout) for _ in range(layers))
        self.norm = nn.RMSNorm(hidden, eps=1e-6)

    def forward(self, x: Tensor, encoded: Tensor | None = None) -> Tensor:
        bias = self.bias(x.shape[1], x.device)
        for layer in self.layers:
            x = layer(x, bias, encoded)
        return self.norm(x)


class T5(nn.Module):
    """`targets` is what the decoder has to say; it is shown to the decoder shifted by one."""

    def __init__(
        self,
        layers: int,
        hidden: int,
        heads: int,
        head_dim: int,
        ffn: int,
        vocab: int,
        buckets: int = 32,
        tied: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab, hidden)
        self.encoder = Stack(layers, hidden, heads, head_dim, ffn, buckets, cross=False, dropout=dropout)
        self.decoder = Stack(layers, hidden, heads, head_dim, ffn, buckets, cross=True, dropout=dropout)
        self.head = nn.Linear(hidden, vocab, bias=False)
        tie_and_draw(self, self.head, self.tokens, tied)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        encoded = self.encoder(self.tokens(tokens))
        shifted = F.pad(targets[:, :-1], (1, 0))
        decoded = self.decoder(self.tokens(shifted), encoded)
        return F.cross_entropy(self.head(decoded).flatten(0, 1), targets.flatten())
