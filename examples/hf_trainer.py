"""transformers' Trainer under a plan: its loop, schedule, callbacks and logs; the plan's parallelism.

One process, or several: torchrun --nproc-per-node=2 examples/hf_trainer.py
The same training without meshwright, to compare the losses: python examples/hf_trainer.py --plain
It needs `accelerate`, as the Trainer does. docs/hf_trainer.md says what PlannedTrainer leaves out.
"""

from __future__ import annotations

import argparse
import os
import tempfile

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import meshwright as mw
from meshwright.hf import PlannedTrainer

ROWS = 8  # of the global batch


def main() -> tuple[float, float]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--out", help="write the trained model here")
    parser.add_argument("--plain", action="store_true", help="transformers' own Trainer, in one process")
    options = parser.parse_args()

    args = TrainingArguments(
        output_dir=options.out or tempfile.gettempdir(),
        max_steps=options.steps,
        learning_rate=1e-2,
        optim="adamw_torch",
        logging_steps=1,
        save_strategy="no",  # "steps" saves what resume_from_checkpoint reads
        report_to=[],
        use_cpu=not torch.cuda.is_available(),
        disable_tqdm=True,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(small_config(options.layers))
    samples = rows(64)
    data = {"train_dataset": samples, "eval_dataset": samples[:ROWS]}
    if options.plain:
        args.per_device_train_batch_size = ROWS
        trainer = Trainer(model=model, args=args, **data)
    else:
        batch = {name: torch.stack([sample[name] for sample in samples[:ROWS]]) for name in samples[0]}
        plan = mw.plan(model, batch, cluster=f"local:{os.environ.get('WORLD_SIZE', '1')}")  # 8 H100: cluster="h100:8"
        trainer = PlannedTrainer(model, plan, args, **data)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    held_out = trainer.evaluate()["eval_loss"]
    if options.out:
        trainer.save_model()
    if args.process_index == 0:
        print(f"loss {losses[0]:.6f} -> {losses[-1]:.6f}, evaluated {held_out:.6f}")
    return losses[0], losses[-1]


def small_config(layers: int) -> LlamaConfig:
    return LlamaConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=layers,
        num_attention_heads=4,
        vocab_size=128,
        use_cache=False,
    )


def rows(count: int) -> list[dict[str, Tensor]]:
    """Your data set: token ids and labels."""
    made = [(start + torch.arange(32)) % 128 for start in torch.randint(0, 128, (count, 1))]
    return [{"input_ids": row, "labels": row.clone()} for row in made]


if __name__ == "__main__":
    main()
