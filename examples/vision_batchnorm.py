"""A convolutional network with BatchNorm: over several devices its statistics are those of the whole batch.

One process, or several: torchrun --nproc-per-node=2 examples/vision_batchnorm.py
"""

from __future__ import annotations

import argparse
import os

import torch
from torch import nn

import meshwright as mw


def block(inside: int, outside: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inside, outside, 3, padding=1), nn.BatchNorm2d(outside), nn.ReLU(), nn.MaxPool2d(2))


def main() -> tuple[float, float]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()

    torch.manual_seed(0)
    model = nn.Sequential(block(3, 16), block(16, 32), nn.Flatten(), nn.Linear(32 * 8 * 8, 10))
    images, labels = torch.randn(16, 3, 32, 32), torch.randint(0, 10, (16,))

    def loss(output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(output, labels)

    cluster = f"local:{os.environ.get('WORLD_SIZE', '1')}"
    plan = mw.plan(model, {"input": images, "labels": labels}, cluster=cluster, loss=loss)
    trainer = mw.parallelize(model, plan, loss)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(args.steps):
        losses.append(trainer.step({"input": images, "labels": labels}, global_batch=True).item())
        optimizer.step()
        optimizer.zero_grad()
    if os.environ.get("RANK", "0") == "0":
        print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
        print(f"running mean of the first BatchNorm: {model[0][1].running_mean[:3].tolist()}")
    return losses[0], losses[-1]


if __name__ == "__main__":
    main()
