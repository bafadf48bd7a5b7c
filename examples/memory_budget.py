"""One device and a memory budget: the fastest step that stays inside it.

Values are recomputed, computed in chunks, kept on the host or run in micro-batches, whichever costs least time.
On a GPU the budget is real memory; on a CPU the plan is the same and the limit is what it is planned for.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn

import meshwright as mw


def main() -> list[int]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--budgets", default="32MiB,6MiB")
    args = parser.parse_args()

    peaks = []
    for memory in args.budgets.split(","):
        torch.manual_seed(0)
        layers = [nn.Sequential(nn.Linear(args.width, args.width), nn.GELU()) for _ in range(4)]
        model, batch = nn.Sequential(*layers), (torch.randn(2048, args.width),)
        trainer = mw.fit(model, batch, memory, loss=lambda y, x: (y - x).square().mean(), optimizer="sgd")
        optimizer = torch.optim.SGD(trainer.parameters(), lr=0.1)
        loss = trainer.step(batch)
        optimizer.step()
        predicted = trainer.plan.predicted
        peaks.append(predicted.peak_bytes)
        print(f"{memory}: loss {loss.item():.4f}, peak {predicted.peak_bytes / 2**20:.1f} MiB, {trainer.plan!r}")
    return peaks


if __name__ == "__main__":
    main()
