"""transformers' Trainer with meshwright's step: its loop, schedule, callbacks and logs; the plan's parallelism.

One process, or several: torchrun --nproc-per-node=2 examples/hf_trainer.py
It needs `accelerate`, as the Trainer does. Copy `PlannedTrainer`; docs/hf_trainer.md says what it leaves out.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Trainer, TrainingArguments

import meshwright as mw


class PlannedTrainer(Trainer):
    """A Trainer whose steps run under a plan. The plan has the global batch and its micro-batches, so
    `gradient_accumulation_steps` is 1 and `per_device_train_batch_size` has no say."""

    def __init__(self, model: PreTrainedModel, plan: mw.Plan, args: TrainingArguments, **others: Any) -> None:
        refused = {
            "gradient_accumulation_steps": args.gradient_accumulation_steps != 1,
            "bf16 or fp16 (the plan's precision says it)": args.bf16 or args.fp16,
            "save_strategy (use mw.save in a callback)": args.save_strategy != "no",
            "activation_checkpointing (the plan says what is recomputed)": args.gradient_checkpointing,
        }
        for name, given in refused.items():
            if given:
                raise ValueError(f"TrainingArguments.{name} is the plan's to decide: leave it out")
        args.average_tokens_across_devices = False  # a step's loss is that of the global batch; ranks read parts of it
        self.run = mw.parallelize(model.train(), plan)
        super().__init__(model=model, args=args, **others)
        self.accelerator.prepare_model = lambda model, **_: model  # it is parallel already: no DDP around it

    def get_train_dataloader(self) -> Any:
        """This rank's part of every global batch."""
        return mw.loader(self.train_dataset, self.run.plan, seed=self.args.seed)

    def training_step(self, model: Any, inputs: Mapping[str, Tensor], num_items_in_batch: Any = None) -> Tensor:
        model.train()  # evaluate leaves it in eval mode
        return self.run.step(dict(inputs)).detach()

    def _move_model_to_device(self, model: Any, device: Any) -> None:
        """It is where the plan wants it."""

    def _clip_grad_norm(self, model: Any) -> Tensor:
        return self.run.clip_grad_norm_(self.args.max_grad_norm)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """For from_pretrained. Every rank calls it, one writes."""
        with self.run.gathered() as whole:
            if self.args.should_save:
                whole.save_pretrained(output_dir or self.args.output_dir)


def main() -> tuple[float, float]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--out", help="write the trained model here")
    options = parser.parse_args()

    args = TrainingArguments(
        output_dir=options.out or tempfile.gettempdir(),
        max_steps=options.steps,
        learning_rate=1e-2,
        optim="adamw_torch",
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=not torch.cuda.is_available(),
        disable_tqdm=True,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(small_config(options.layers))
    samples = rows(64)
    batch = {name: torch.stack([sample[name] for sample in samples[:8]]) for name in samples[0]}
    plan = mw.plan(model, batch, cluster=f"local:{os.environ.get('WORLD_SIZE', '1')}")  # on 8 H100: cluster="h100:8"

    trainer = PlannedTrainer(model, plan, args, train_dataset=samples, eval_dataset=samples[:8])
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    held_out = trainer.evaluate()["eval_loss"]
    if options.out:
        trainer.save_model()
    if args.process_index == 0:
        print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}, evaluated {held_out:.3f}")
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
