"""An entry of the zoo: a name, where it comes from, and a function that builds model, batches and loss."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

BATCH = 8
SEED = 20
IGNORED = -100

Batch = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Case:
    """A model with random weights, one batch per step, and a loss where the model returns none.

    reference: `eager`, plain PyTorch in one process; `alone`, meshwright on one process, for models that draw random
    numbers (meshwright draws them by element, PyTorch by position in a stream).
    """

    model: nn.Module
    batches: tuple[Batch, ...]
    loss: Callable[..., Tensor] | None = None
    reference: str = "eager"


@dataclass(frozen=True, slots=True)
class Entry:
    """One model of the zoo.

    build: called with the generator's seed set; gives the same weights every time. pins: the first that can be planned
    is run. also: pins that must be refused, or compute the same. answer: to lines that ask for a tensor's value, which
    is then given with `allow=`, as their refusal says.
    """

    name: str
    source: str
    build: Callable[[], Case]
    pins: tuple[str, ...] = ("tp=2", "zero=3")
    also: tuple[str, ...] = ()
    optimizer: str = "adamw"

    double: bool = False
    answer: str = ""

    def made(self) -> Case:
        torch.manual_seed(SEED)
        case = self.build()
        case.model.train()
        return in_double(case) if self.double else case


def in_double(case: Case) -> Case:
    """The same in float64, where rounding is too small to be mistaken for anything else."""
    batches = tuple({name: _wide(value) for name, value in batch.items()} for batch in case.batches)
    return replace(case, model=case.model.double(), batches=batches)


def _wide(value: Tensor) -> Tensor:
    return value.double() if value.is_floating_point() else value


def eager_loss(case: Case, batch: Batch) -> Tensor:
    """The loss as a plain training loop computes it."""
    if case.loss is None:
        found = case.model(**batch)
        return found if isinstance(found, Tensor) else found["loss"] if isinstance(found, Mapping) else found[0]
    taken = _taken(case.model, batch)
    rest = [value for name, value in batch.items() if name not in taken]
    return case.loss(case.model(**taken), *(rest or batch.values()))


def _taken(model: nn.Module, batch: Batch) -> Batch:
    parameters = inspect.signature(model.forward).parameters
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return batch
    return {name: value for name, value in batch.items() if name in parameters}


def three(make: Callable[[], Batch]) -> tuple[Batch, ...]:
    """A batch for each step, all different."""
    return tuple(make() for _ in range(3))


def padded(seq: int, batch: int = BATCH) -> Tensor:
    """An attention mask of texts of different lengths, padded on the right; one text is whole."""
    lengths = torch.randint(seq // 2, seq + 1, (batch, 1))
    lengths[0] = seq
    return (torch.arange(seq) < lengths).long()


def ignoring(labels: Tensor, mask: Tensor, kept: float = 0.8) -> Tensor:
    """Labels of which padding and some others do not count; each text keeps its first label."""
    counted = mask.bool() & (torch.rand(labels.shape) < kept)
    counted[:, 1] = True
    return torch.where(counted, labels, torch.full_like(labels, IGNORED))


def text_batch(vocab: int, seq: int, *, kept: float = 0.8, low: int = 3, batch: int = BATCH) -> Batch:
    ids = torch.randint(low, vocab, (batch, seq))
    mask = padded(seq, batch)
    return {"input_ids": ids * mask, "attention_mask": mask, "labels": ignoring(ids, mask, kept)}


def image_batch(name: str, size: int, classes: int, *, channels: int = 3, label: str = "labels") -> Batch:
    return {name: torch.randn(BATCH, channels, size, size), label: torch.randint(0, classes, (BATCH,))}


def without_dropout(model: nn.Module) -> nn.Module:
    """Every probability of dropout, stochastic depth and layer drop set to 0, wherever a module keeps it."""
    for module in model.modules():
        for key, value in list(vars(module).items()):
            if isinstance(value, float) and ("drop" in key or (key == "p" and "Drop" in type(module).__name__)):
                setattr(module, key, 0.0)
        config: Any = getattr(module, "config", None)
        for key, value in list(vars(config).items()) if hasattr(config, "__dict__") else ():
            if isinstance(value, float) and "drop" in key:
                setattr(config, key, 0.0)
    return model
