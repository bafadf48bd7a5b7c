"""Rivals of `bench/activation_memory.py`: one training step each."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import meshwright.models.llama as llama
from bench.activation_hand import HAND, HandMade

RIVALS = ("eager", "per-block", "selective", "compile", "compile 0.75", "compile 0.5", "compile 0.25", "compile 0.1")
PRODUCTS = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.bmm.default)


class Rival:
    """A model under one of torch's own means; `step` runs zero_grad, forward, backward and the optimizer.

    compiled: called once torch.compile has compiled the whole model, before that runs.
    """

    def __init__(
        self, name: str, model: nn.Module, batch: dict[str, Tensor], compiled: Callable[[], None] = lambda: None
    ) -> None:
        self.model, self.batch = model, batch
        self.run: Any = model
        if name in ("per-block", "selective"):
            _checkpointed(model, selective=name == "selective")
        elif name.startswith("compile"):
            share = float(name.partition(" ")[2] or 1.0)
            self.run = torch.compile(model, backend=_backend(compiled, activation_memory_budget=share))
        elif name in HAND:
            self.run = HandMade(name, model, lambda tags: _backend(lambda: None, tags))
        self.optimizer: torch.optim.Optimizer | None = None

    def compile(self) -> None:
        """What can be compiled before the first step."""
        if isinstance(self.run, HandMade):
            self.run.compile(**self.batch)

    def wake(self) -> None:
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5, fused=True)

    def park(self) -> None:
        self.optimizer = None
        for parameter in self.model.parameters():
            parameter.grad = None

    def step(self) -> Tensor:
        assert self.optimizer is not None
        self.optimizer.zero_grad()
        loss: Tensor = self.run(**self.batch)
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def _backend(
    compiled: Callable[[], None], tags: Callable[[fx.Graph], None] | None = None, **settings: float
) -> Callable[..., Any]:
    """Inductor, a function of its own, so that rivals share no code."""
    from torch._functorch import config as functorch
    from torch._inductor import config as inductor
    from torch._inductor.compile_fx import compile_fx

    def backend(module: Any, inputs: Any) -> Any:
        # Backward too, before the first step, where torch knows how to be told.
        whole = {name: True for name in ("force_non_lazy_backward_lowering",) if hasattr(functorch, name)}
        with functorch.patch(**settings, **whole), inductor.patch(joint_custom_post_pass=tags):
            found = compile_fx(module, inputs)
        compiled()
        return found

    return backend


def _checkpointed(model: nn.Module, selective: bool) -> None:
    """Checkpoint every block; keep what products, convolutions and attention make where `selective`."""

    def policy(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        kept = op in PRODUCTS or "attention" in str(op) or "convolution" in str(op)
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    options: dict[str, Any] = {"use_reentrant": False}
    if selective:
        options["context_fn"] = partial(create_selective_checkpoint_contexts, policy)
    for module in model.modules():
        if isinstance(module, nn.ModuleList):
            for block in module:
                block.forward = partial(checkpoint, block.forward, **options)  # type: ignore[method-assign]


def hand_rotary_tables(settings: dict[str, Any], device: torch.device) -> None:
    """Rivals are handed a Llama's rotary tables, as ours are: compiled, they would work them out in every layer."""
    if "rope_base" not in settings or llama.rotary_tables.__name__ == "handed":
        return
    like = torch.empty(0, device=device, dtype=torch.bfloat16)
    head_dim = settings["hidden"] // settings["heads"]
    tables = llama.rotary_tables(settings["seq"], head_dim, settings["rope_base"], like)

    def handed(seq: int, head_dim: int, base: float, x: Tensor) -> tuple[Tensor, Tensor]:
        return tables

    llama.rotary_tables = handed
