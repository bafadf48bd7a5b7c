"""A mixture of experts: experts are sharded over devices (expert parallel) where that is faster.

One process, or several: torchrun --nproc-per-node=2 examples/mixture_of_experts.py
"""

from __future__ import annotations

import argparse
import os

import torch
from transformers import MixtralConfig, MixtralForCausalLM

import meshwright as mw


def main() -> tuple[float, float]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--layers", type=int, default=2)
    args = parser.parse_args()

    torch.manual_seed(0)
    config = MixtralConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=args.layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
        num_experts_per_tok=2,
        vocab_size=128,
        use_cache=False,
    )
    model = MixtralForCausalLM(config)
    tokens = torch.randint(0, 128, (8, 32))
    batch = {"input_ids": tokens, "labels": tokens}

    plan = mw.plan(model, batch, cluster=f"local:{os.environ.get('WORLD_SIZE', '1')}")
    trainer = mw.parallelize(model, plan)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(args.steps):
        losses.append(trainer.step(batch, global_batch=True).item())
        optimizer.step()
        optimizer.zero_grad()
    if os.environ.get("RANK", "0") == "0":
        print(repr(plan))
        print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
    return losses[0], losses[-1]


if __name__ == "__main__":
    main()
