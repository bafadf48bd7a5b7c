"""`PlannedTrainer`: transformers' Trainer whose steps run under a plan (docs/hf_trainer.md).

The Trainer keeps its loop, data, optimizer, schedule, callbacks and logs. The plan has the parallelism, the precision,
the global batch and its micro-batches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from meshwright.errors import MeshwrightError, RunError, counted
from meshwright.explain.words import headline
from meshwright.plan import Plan
from meshwright.runtime.state.checkpoint import load, save
from meshwright.runtime.trainer import parallelize
from meshwright.runtime.variants import smaller

try:
    from accelerate.data_loader import prepare_data_loader
    from transformers import PreTrainedModel, Trainer, TrainingArguments
except ImportError as error:
    raise MeshwrightError(
        f"PlannedTrainer without transformers' Trainer ({error})",
        "transformers 5 or newer, and accelerate",
        "pip install 'meshwright[hf]'",
    ) from error

STATE = "meshwright"
"""The folder of a checkpoint that holds what `mw.save` writes: weights, optimizer state, random numbers."""

REFUSED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "gradient_accumulation_steps": (
        lambda given: given != 1,
        "plan for the whole global batch (global_batch=...): its micro-batches are accumulated",
    ),
    "fp16": (bool, "plan with precision='mixed'"),
    "bf16": (bool, "plan with precision='mixed', or 'bf16' to store weights in bf16 too"),
    "activation_checkpointing": (bool, "plan with memory=...: the plan says what is recomputed"),
    "gradient_checkpointing": (bool, "plan with memory=...: the plan says what is recomputed"),
    "deepspeed": (bool, "pins='zero=3' for ZeRO-3; see docs/plan.md"),
    "fsdp": (bool, "pins='zero=3' for FSDP; see docs/plan.md"),
    "parallelism_config": (lambda given: given is not None, "pins='tp=2', 'cp=2': see docs/plan.md"),
    "torch_compile": (bool, "plan with compile=True"),
    "auto_find_batch_size": (bool, "plan with memory=...: the plan fits"),
    "use_liger_kernel": (bool, "leave it out: it changes the model after it was planned"),
    "neftune_noise_alpha": (lambda given: given is not None, "leave it out: it hooks into the model's forward"),
    "label_smoothing_factor": (bool, "let the model compute its loss so, then plan"),
    "include_num_input_tokens_seen": (lambda given: given not in (False, "no"), "leave it out: it counts by rank"),
    "fp16_full_eval": (bool, "leave it out: it casts the model"),
    "bf16_full_eval": (bool, "leave it out: it casts the model"),
    "train_sampling_strategy": (lambda given: given == "batch_rebalance", "leave it out: it deals samples to ranks"),
    "optim": (
        lambda given: "lomo" in str(getattr(given, "value", given)),
        "use one that steps after backward",
    ),
}
"""Settings of TrainingArguments: when they are refused, and what to do instead."""

UNTAKEN = {
    "model_init": "make the model, plan for it, and give both",
    "compute_loss_func": "let the model return its loss, then plan",
}


class PlannedTrainer(Trainer):  # type: ignore[misc]
    """transformers' Trainer, with a plan: `PlannedTrainer(model, plan, args, train_dataset=...)`.

    One step reads one global batch of the plan, in the order, and through the collator, of a plain Trainer in one
    process whose batch is that large. `run` is meshwright's trainer.

    model: it is adopted, as by `mw.parallelize`.
    plan: one, or several for batches of other sizes.
    others: what a Trainer takes.
    """

    def __init__(
        self,
        model: PreTrainedModel | nn.Module,
        plan: Plan | list[Plan],
        args: TrainingArguments | None = None,
        **others: Any,
    ) -> None:
        args = args if args is not None else TrainingArguments()
        first = plan[0] if isinstance(plan, list) else plan
        _check(type(self), first, args, others)
        self.batch = first.batch
        config: Any = getattr(model, "config", None)
        cached = getattr(config, "use_cache", None)
        super().__init__(model=model, args=args, **others)
        if cached is not None:
            config.use_cache = cached  # as it was planned; a Trainer turns it off
        self._set_signature_columns_if_needed()  # of the model's own forward
        self.accelerator.prepare_model = lambda model, **_: model  # no DDP around it, no other device
        self._train_batch_size = first.batch
        self.run = parallelize(model.train(), plan, seed=args.seed)
        if self.is_world_process_zero():
            print(f"meshwright: {headline(first)}", flush=True)

    def _move_model_to_device(self, model: nn.Module, device: torch.device) -> None:
        """It is where the plan wants it."""

    def _wrap_model(self, model: nn.Module, *_: Any, **__: Any) -> nn.Module:
        return model

    def get_total_train_batch_size(self, args: TrainingArguments) -> int:
        return self.batch

    def get_train_dataloader(self) -> Any:
        """Global batches, the same on every rank; a step takes this rank's part."""
        rows = len(self.train_dataset) % self.batch if hasattr(self.train_dataset, "__len__") else 0
        if rows and not self.args.dataloader_drop_last and smaller(self.run.plan, rows) is None:
            raise RunError(
                f"a last batch of {counted(rows, 'sample')}",
                "as many as the axes that split samples divide",
                "pass dataloader_drop_last=True to TrainingArguments, or plan for another global batch",
            )
        self.accelerator.prepare = self._on_every_rank
        try:
            return super().get_train_dataloader()
        finally:
            del self.accelerator.prepare

    def _on_every_rank(self, loader: Any) -> Any:
        """What accelerate makes of a loader in one process."""
        if loader.worker_init_fn is not None:
            loader.worker_init_fn = partial(loader.worker_init_fn, rank=0)
        seeds = {"use_seedable_sampler": self.accelerator.use_seedable_sampler, "data_seed": self.args.data_seed}
        return prepare_data_loader(loader, num_processes=1, process_index=0, **seeds)

    def training_step(self, model: nn.Module, inputs: Mapping[str, Any], num_items_in_batch: Any = None) -> Tensor:
        model.train()  # evaluate leaves it in eval mode
        return self.run.step(dict(inputs), global_batch=True).detach()

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """Of this rank: they are summed over ranks, and each has counted the global batch."""
        return int(super().floating_point_ops(inputs)) // self.run.plan.world_size

    def _clip_grad_norm(self, model: nn.Module) -> Tensor:
        return self.run.clip_grad_norm_(self.args.max_grad_norm)

    def _get_grad_norm(self, model: nn.Module, grad_norm: Tensor | None = None) -> Tensor:
        return self.run.clip_grad_norm_(float("inf")) if grad_norm is None else grad_norm

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """For `from_pretrained`; call it on every rank, which holds all weights meanwhile. Checkpoints of the loop hold
        what ranks store (`STATE`), and whole weights if `save_only_model` is set."""
        folder = Path(output_dir or self.args.output_dir)
        if not _internal_call or self.args.save_only_model:
            with self.run.gathered() as whole:
                if self.args.should_save:
                    whole.save_pretrained(folder)  # type: ignore[operator]
        if self.args.should_save:
            folder.mkdir(parents=True, exist_ok=True)
            if self.processing_class is not None:
                self.processing_class.save_pretrained(folder)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        save(self.run, self.optimizer.optimizer, Path(output_dir) / STATE)
        if self.args.should_save:
            torch.save(self.lr_scheduler.state_dict(), Path(output_dir) / "scheduler.pt")

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        """Weights are loaded with the optimizer's state, once there is one."""
        if not Path(resume_from_checkpoint).is_dir():
            folder = Path(self.args.output_dir)
            there = ", ".join(sorted(map(str, folder.glob("checkpoint-*")))) or f"none in {folder}"
            given = f"resume_from_checkpoint={resume_from_checkpoint!r}: there is no such folder"
            raise RunError(given, f"a checkpoint: {there}", "correct the path, or leave it out to begin anew")
        if not (Path(resume_from_checkpoint) / STATE).is_dir():
            raise RunError(
                f"{resume_from_checkpoint} has no folder {STATE}",
                "a checkpoint that a PlannedTrainer saved (save_only_model=False)",
                "to go on from weights alone, load them into the model before you plan",
            )

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is not None:
            load(self.run, self.optimizer.optimizer, Path(checkpoint) / STATE)
            self.lr_scheduler.load_state_dict(torch.load(Path(checkpoint) / "scheduler.pt", weights_only=True))

    def _load_best_model(self) -> None:
        best = Path(self.state.best_model_checkpoint) / STATE
        if best.is_dir():
            load(self.run, None, best)
        else:
            super()._load_best_model()


def _check(kind: type[Trainer], plan: object, args: TrainingArguments, others: Mapping[str, Any]) -> None:
    """Refuses what would not be done, before anything runs."""
    if not isinstance(plan, Plan):
        raise RunError(f"a {type(plan).__name__} as the plan", "a Plan", "give what mw.plan or mw.Plan.load gives")
    for name, (refused, todo) in REFUSED.items():
        given = getattr(args, name, None)
        if given is not None and refused(given):
            raise RunError(f"TrainingArguments({name}={given!r})", "what a plan does not decide", todo)
    for name, todo in UNTAKEN.items():
        if others.get(name) is not None:
            raise RunError(f"PlannedTrainer({name}=...)", "the loss and the model that were planned", todo)
    if kind.compute_loss is not Trainer.compute_loss:
        raise RunError(f"{kind.__name__}.compute_loss", "the model's own loss", UNTAKEN["compute_loss_func"])
    if plan.precision == "fp16":
        raise RunError("a plan of precision='fp16'", "'mixed', 'bf16' or 'fp32'", "plan with one of these")
    rows = args.per_device_train_batch_size * args.world_size
    default = TrainingArguments.__dataclass_fields__["per_device_train_batch_size"].default
    if args.per_device_train_batch_size != default and rows != plan.batch:
        raise RunError(
            f"per_device_train_batch_size={args.per_device_train_batch_size} on {counted(args.world_size, 'process')}",
            f"{plan.batch} rows in all, the plan's global batch",
            "leave it out: the plan says it",
        )
