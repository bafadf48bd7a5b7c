"""Fine-tune a model of transformers with LoRA: its weights are frozen, small low-rank ones are added and trained.

One process, or several: torchrun --nproc-per-node=2 examples/finetune_lora.py
A real run loads weights: LlamaForCausalLM.from_pretrained("path/to/model").
"""

from __future__ import annotations

import argparse
import os

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

import meshwright as mw


class LoRA(nn.Module):
    """A frozen Linear and a trained product of two narrow matrices."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


def with_lora(model: nn.Module, rank: int, names: tuple[str, ...] = ("q_proj", "v_proj")) -> nn.Module:
    model.requires_grad_(False)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if name in names and isinstance(child, nn.Linear):
                setattr(module, name, LoRA(child, rank))
    return model


def main() -> tuple[float, float]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--layers", type=int, default=4)
    args = parser.parse_args()

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=args.layers,
        num_attention_heads=4,
        vocab_size=128,
        use_cache=False,
    )
    model = with_lora(LlamaForCausalLM(config), rank=4)
    tokens = torch.randint(0, 128, (8, 32))
    batch = {"input_ids": tokens, "labels": tokens}

    plan = mw.plan(model, batch, cluster=f"local:{os.environ.get('WORLD_SIZE', '1')}")
    trainer = mw.parallelize(model, plan)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-2)
    losses = []
    for _ in range(args.steps):
        losses.append(trainer.step(batch, global_batch=True).item())
        optimizer.step()
        optimizer.zero_grad()
    if os.environ.get("RANK", "0") == "0":
        many = sum(parameter.numel() for parameter in trained)
        print(f"{many} trained parameters; loss {losses[0]:.3f} -> {losses[-1]:.3f}")
    return losses[0], losses[-1]


if __name__ == "__main__":
    main()
