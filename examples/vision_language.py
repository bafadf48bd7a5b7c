"""A vision-language model whose parts are parallelised differently: the planner chooses per operator, not per model.

A vision encoder makes image tokens, a projection brings them to the width of the language model, which reads them
before its text. The plan for 8 H100s is printed; the model is then trained here, on one process or under torchrun.
"""

from __future__ import annotations

import argparse
import os

import torch
from torch import Tensor, nn

import meshwright as mw


class VisionLanguage(nn.Module):
    def __init__(self, vision: int, text: int, layers: int, vocab: int = 128, patch: int = 8) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, vision, patch, stride=patch)
        self.vision = nn.ModuleList(_layer(vision) for _ in range(layers))
        self.project = nn.Linear(vision, text)
        self.tokens = nn.Embedding(vocab, text)
        self.language = nn.ModuleList(_layer(text) for _ in range(layers))
        self.head = nn.Linear(text, vocab)

    def forward(self, images: Tensor, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        for layer in self.vision:
            x = layer(x)
        y = torch.cat([self.project(x), self.tokens(tokens)], 1)
        for layer in self.language:
            y = layer(y)
        logits = self.head(y[:, -tokens.shape[1] :])
        return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def _layer(width: int) -> nn.Module:
    return nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)


def main() -> tuple[float, float]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--cluster", default="h100:8", help="what the printed plan is for")
    args = parser.parse_args()

    torch.manual_seed(0)
    model = VisionLanguage(vision=32, text=64, layers=args.layers)
    tokens = torch.randint(0, 128, (8, 16))
    batch = {"images": torch.randn(8, 3, 32, 32), "tokens": tokens, "targets": tokens}
    if args.cluster and os.environ.get("RANK", "0") == "0":
        print(mw.plan(model, batch, cluster=args.cluster).explain())

    plan = mw.plan(model, batch, cluster=f"local:{os.environ.get('WORLD_SIZE', '1')}")
    trainer = mw.parallelize(model, plan)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(args.steps):
        losses.append(trainer.step(batch, global_batch=True).item())
        optimizer.step()
        optimizer.zero_grad()
    if os.environ.get("RANK", "0") == "0":
        print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
    return losses[0], losses[-1]


if __name__ == "__main__":
    main()
