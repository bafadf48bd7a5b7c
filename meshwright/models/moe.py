"""A Mixtral style decoder, loss included: every token goes to `top` of `experts` MLPs, and none is dropped.

Tokens are sorted by expert, so that each expert's rows lie together and one grouped matmul serves them all.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meshwright.models.llama import Attention, Llama, rotary_tables


class Experts(nn.Module):
    def __init__(self, hidden: int, ffn: int, experts: int, top: int, gated: bool, balanced: bool = True) -> None:
        super().__init__()
        self.experts, self.top, self.gated, self.balanced = experts, top, gated, balanced
        self.router = nn.Linear(hidden, experts, bias=False)
        self.up = nn.Parameter(torch.empty(experts, hidden, ffn * (2 if gated else 1)))
        self.down = nn.Parameter(torch.empty(experts, ffn, hidden))
        for weight in (self.up, self.down):
            nn.init.normal_(weight, std=0.02)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """The tokens after their experts; the router's probabilities and picks as one balance figure, if asked for."""
        tokens = x.flatten(0, 1)
        probabilities = F.softmax(self.router(tokens).float(), dim=-1)
        weights, chosen = probabilities.topk(self.top, dim=-1)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        order = chosen.flatten().argsort()
        counts = torch.histc(chosen.flatten().float(), bins=self.experts, min=0, max=self.experts - 1)
        rows = self.mlp(tokens[order // self.top], counts.cumsum(0).to(torch.int32))
        rows = rows * weights.to(x.dtype).flatten()[order].unsqueeze(-1)
        mixed = rows[order.argsort()].view(-1, self.top, x.shape[-1]).sum(dim=1)
        if not self.balanced:
            return mixed.view_as(x), None
        return mixed.view_as(x), (counts / counts.sum() * probabilities.mean(dim=0)).sum() * self.experts

    def mlp(self, rows: Tensor, ends: Tensor) -> Tensor:
        """`ends`: for each expert, where its rows end."""
        y = F.grouped_mm(rows, self.up, offs=ends)
        if self.gated:
            gate, up = y.chunk(2, dim=-1)
            y = F.silu(gate) * up
        else:
            y = F.gelu(y)
        return F.grouped_mm(y, self.down, offs=ends)


class Block(nn.Module):
    def __init__(
        self, hidden: int, heads: int, kv_heads: int, ffn: int, experts: int, top: int, gated: bool, balanced: bool
    ) -> None:
        super().__init__()
        self.norm1 = nn.RMSNorm(hidden, eps=1e-5)
        self.attention = Attention(hidden, heads, kv_heads)
        self.norm2 = nn.RMSNorm(hidden, eps=1e-5)
        self.experts = Experts(hidden, ffn, experts, top, gated, balanced)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor | None]:
        x = x + self.attention(self.norm1(x), cos, sin)
        y, balance = self.experts(self.norm2(x))
        return x + y, balance


class MoE(Llama):
    """balance: weight of the loss that keeps experts evenly used (Switch Transformer's); 0 leaves it out."""

    def __init__(
        self,
        layers: int,
        hidden: int,
        heads: int,
        kv_heads: int,
        ffn: int,
        vocab: int,
        experts: int,
        top: int,
        gated: bool,
        tied: bool,
        rope_base: float,
        balance: float = 0.0,
    ) -> None:
        block = partial(Block, hidden, heads, kv_heads, ffn, experts, top, gated, bool(balance))
        super().__init__(layers, hidden, heads, kv_heads, ffn, vocab, tied, rope_base, block)
        self.balance = balance

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.tokens(tokens)
        cos, sin = rotary_tables(tokens.shape[1], self.head_dim, self.rope_base, x)
        balances = []
        for layer in self.layers:
            x, balance = layer(x, cos, sin)
            balances.append(balance)
        loss = F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())
        return loss + self.balance * torch.stack(balances).mean() if self.balance else loss
