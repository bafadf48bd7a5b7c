"""A layer with partial rotary embeddings has tables that can be held: queries and keys are carried by the few classes
of layouts that sines and cosines tell apart."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from meshwright.capture import capture
from meshwright.cluster import load_cluster
from meshwright.pins.meshes import allowed_meshes
from meshwright.pins.pins import Pins
from meshwright.planner.sharding.model import ShardingModel
from meshwright.price.parameter import Setting

HEADS, HEAD, ROTARY, LENGTH = 8, 32, 16, 16


class PartialRotary(nn.Module):
    """One layer as GPT-J has it: attention and MLP side by side, half of every head rotated."""

    def __init__(self, hidden: int = HEADS * HEAD) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden)
        self.q, self.k, self.v, self.out = (nn.Linear(hidden, hidden, bias=False) for _ in range(4))
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)
        self.register_buffer("positions", torch.randn(1, LENGTH, ROTARY))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        sin, cos = self.positions[:, : x.shape[1]].split(ROTARY // 2, -1)  # type: ignore[index]
        q, k, v = (linear(y).view(*x.shape[:2], HEADS, HEAD) for linear in (self.q, self.k, self.v))
        q, k = rotated(q, sin, cos).permute(0, 2, 1, 3), rotated(k, sin, cos).permute(0, 2, 1, 3)
        scores = torch.softmax(q @ k.transpose(-1, -2) / HEAD**0.5, -1)
        attention = (scores @ v.permute(0, 2, 1, 3)).permute(0, 2, 1, 3).contiguous().view(x.shape)
        return x + self.out(attention) + self.down(nn.functional.gelu(self.up(y)))


def rotated(x: Tensor, sin: Tensor, cos: Tensor) -> Tensor:
    part, rest = x[:, :, :, :ROTARY], x[:, :, :, ROTARY:]
    sin, cos = (one[:, :, None, :].repeat_interleave(2, 3) for one in (sin, cos))
    turned = torch.stack((-part[:, :, :, 1::2], part[:, :, :, ::2]), dim=-1).flatten(-2)
    return torch.cat((part * cos + turned * sin, rest), -1)


def test_its_tables_are_held_on_two_axes() -> None:
    model = PartialRotary()
    x = torch.randn(8, LENGTH, HEADS * HEAD)
    program = capture(model, (x,), lambda y, x: (y - x).square().mean())
    mesh = next(mesh for mesh in allowed_meshes(load_cluster("dgx-h100:1"), (), 2) if mesh.sizes == (2, 4))
    shardings = ShardingModel(program, mesh, Pins(), Setting())
    assert all(shardings.problem(index).prepared is not None for index in range(len(program.segments)))
