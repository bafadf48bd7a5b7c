"""A Llama style decoder, loss included: RMS norms, rotary positions, grouped queries, gated MLP."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meshwright.models.gpt import tie_and_draw


def rotary_tables(seq: int, head_dim: int, base: float, x: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines on the device and in the dtype of `x`; angles in single precision, whatever that is."""
    device = x.device
    frequencies = base ** (-torch.arange(0, head_dim, 2, device=device, dtype=torch.float32) / head_dim)
    angles = torch.arange(seq, device=device, dtype=torch.float32)[:, None] * frequencies[None, :]
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


class Attention(nn.Module):
    def __init__(self, hidden: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.head_dim = hidden // heads
        self.query = nn.Linear(hidden, heads * self.head_dim, bias=False)
        self.key = nn.Linear(hidden, kv_heads * self.head_dim, bias=False)
        self.value = nn.Linear(hidden, kv_heads * self.head_dim, bias=False)
        self.out = nn.Linear(heads * self.head_dim, hidden, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, seq, _ = x.shape

        def split(t: Tensor) -> Tensor:
            return t.view(batch, seq, -1, self.head_dim).transpose(1, 2)

        query = rotate(split(self.query(x)), cos, sin)
        key = rotate(split(self.key(x)), cos, sin)
        y = F.scaled_dot_product_attention(query, key, split(self.value(x)), is_causal=True, enable_gqa=True)
        return self.out(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, hidden: int, heads: int, kv_heads: int, ffn: int) -> None:
        super().__init__()
        self.norm1 = nn.RMSNorm(hidden, eps=1e-5)
        self.attention = Attention(hidden, heads, kv_heads)
        self.norm2 = nn.RMSNorm(hidden, eps=1e-5)
        self.gate = nn.Linear(hidden, ffn, bias=False)
        self.up = nn.Linear(hidden, ffn, bias=False)
        self.down = nn.Linear(ffn, hidden, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x), cos, sin)
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(
        self,
        layers: int,
        hidden: int,
        heads: int,
        kv_heads: int,
        ffn: int,
        vocab: int,
        tied: bool,
        rope_base: float,
        block: Callable[[], nn.Module] | None = None,
    ) -> None:
        """block: a layer; the one above unless given."""
        super().__init__()
        self.head_dim, self.rope_base = hidden // heads, rope_base
        self.tokens = nn.Embedding(vocab, hidden)
        made = block or partial(Block, hidden, heads, kv_heads, ffn)
        self.layers = nn.ModuleList(made() for _ in range(layers))
        self.norm = nn.RMSNorm(hidden, eps=1e-5)
        self.head = nn.Linear(hidden, vocab, bias=False)
        tie_and_draw(self, self.head, self.tokens, tied)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.tokens(tokens)
        cos, sin = rotary_tables(tokens.shape[1], self.head_dim, self.rope_base, x)
        for layer in self.layers:
            x = layer(x, cos, sin)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())
