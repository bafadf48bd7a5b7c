"""Small models whose sizes 2 and 3 both divide, with a batch for each."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from meshwright.models.gpt import GPT
from meshwright.models.llama import Llama
from meshwright.models.resnet import ResNet

NAMES = ("gpt", "llama", "resnet")


class Narrow(nn.Module):
    """Two layers that a planner is quickly done with."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(24, 24), nn.Tanh()) for _ in range(2)))

    def forward(self, x: Tensor) -> Tensor:
        loss: Tensor = self.layers(x).square().mean()
        return loss


def small_model(name: str, dtype: str = "float32") -> tuple[nn.Module, dict[str, Tensor]]:
    torch.manual_seed(0)
    precise = getattr(torch, dtype)
    if name == "narrow":
        return Narrow().to(precise), {"x": torch.randn(24, 24).to(precise)}
    if name == "resnet":
        model: nn.Module = ResNet((1, 2), 12, 12).to(precise)
        return model, {"images": torch.randn(6, 3, 32, 32).to(precise), "labels": torch.randint(0, 12, (6,))}
    batch = {"tokens": torch.randint(0, 96, (6, 12)), "targets": torch.randint(0, 96, (6, 12))}
    if name == "gpt":
        return GPT(layers=2, hidden=48, heads=6, ffn=96, vocab=96, seq=12, tied=True).to(precise), batch
    llama = Llama(layers=2, hidden=48, heads=12, kv_heads=6, ffn=96, vocab=96, tied=False, rope_base=1e4)
    return llama.to(precise), batch
