"""GPipe in five lines: torchrun --nproc-per-node=2 examples/gpipe_five_lines.py"""

from __future__ import annotations

import os

import torch
from torch import nn

import meshwright as mw


def main() -> tuple[float, float]:
    torch.manual_seed(0)
    batch = (torch.randn(32, 64),)
    partitions = int(os.environ.get("WORLD_SIZE", "1"))

    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(8)))
    trainer = mw.gpipe(model, batch, lambda y, x: (y - x).square().mean(), partitions=partitions, microbatches=4)
    optimizer = torch.optim.AdamW(trainer.parameters(), lr=1e-2)
    losses = []
    for _ in range(10):
        losses.append(trainer.step(batch, global_batch=True).item())
        optimizer.step()
        optimizer.zero_grad()

    if os.environ.get("RANK", "0") == "0":
        print(f"{partitions} partitions; loss {losses[0]:.4f} -> {losses[-1]:.4f}")
    return losses[0], losses[-1]


if __name__ == "__main__":
    main()
