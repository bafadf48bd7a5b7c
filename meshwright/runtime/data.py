"""Built-in data, so that a first run needs no download: characters of a text, or coloured noise."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from meshwright.errors import RunError
from meshwright.plan import Plan

CHARACTERS = 128


@cache
def _text() -> Tensor:
    """The shipped text as ASCII codes."""
    return torch.tensor(list(Path(__file__).with_name("text.txt").read_bytes())).clamp(max=CHARACTERS - 1)


def built_in_batch(plan: Plan, vocab: int, classes: int, seed: int, step: int) -> dict[str, Tensor]:
    """The whole global batch of one step: a function of seed and step, the same on every rank."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
    if set(plan.inputs) == {"tokens", "targets"}:
        return _characters(plan.inputs["tokens"].shape, vocab, generator)
    if set(plan.inputs) == {"images", "labels"}:
        return _images(plan.inputs["images"].shape, classes, generator)
    raise RunError(f"a model with inputs {', '.join(plan.inputs)}", "tokens and targets, or images and labels")


def _characters(shape: tuple[int, ...], vocab: int, generator: torch.Generator) -> dict[str, Tensor]:
    if vocab < CHARACTERS:
        raise RunError(f"a vocabulary of {vocab}", f"at least {CHARACTERS}, for the built-in text", "--set vocab=128")
    batch, seq = shape
    text = _text()
    starts = torch.randint(0, len(text) - seq - 1, (batch,), generator=generator)
    rows = torch.stack([text[start : start + seq + 1] for start in starts.tolist()])
    return {"tokens": rows[:, :-1].contiguous(), "targets": rows[:, 1:].contiguous()}


def _images(shape: tuple[int, ...], classes: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Noise around a colour that tells the class."""
    labels = torch.randint(0, classes, (shape[0],), generator=generator)
    colours = torch.stack([torch.sin(labels * (k + 1.0)) for k in range(shape[1])], dim=1)
    noise = torch.randn(shape, generator=generator)
    return {"images": noise + colours[:, :, None, None], "labels": labels}
