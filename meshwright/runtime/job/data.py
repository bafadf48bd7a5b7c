"""Data for a first run, without a download: characters of a text, or noise around a colour that tells the class."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from meshwright.errors import RunError
from meshwright.plan import Plan

CHARACTERS = 128
SAMPLES = 4096
"""How many samples of noise there are; a text has one for each character."""

_SHIFTED = ("targets",)
"""Text inputs that hold the next character; any other holds the same."""


class BuiltIn:
    """Samples with the names, sizes and dtypes of a plan's batch; a function of their number alone."""

    def __init__(self, plan: Plan, settings: Mapping[str, Any], text: str | None = None) -> None:
        self.entries = {name: (entry.shape[1:], entry.dtype) for name, entry in plan.inputs.items()}
        vocabulary = settings.get("vocab", settings.get("vocab_size", 0))
        self.classes = settings.get("classes", settings.get("num_labels")) or 2
        self.seq = max((shape[0] for shape, dtype in self.entries.values() if dtype == "int64" and shape), default=0)
        self.text = torch.zeros(0, dtype=torch.int64)
        if self.seq:
            self.text = _codes(text)
            _check_text(self.text, vocabulary, self.seq, text)
        elif text:
            raise RunError(f"--data {text} for a model that reads {', '.join(self.entries)}", "a model that reads text")

    def __len__(self) -> int:
        return len(self.text) - self.seq - 1 if self.seq else SAMPLES

    def __getitem__(self, index: int, /) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(index)
        label = int(torch.randint(0, self.classes, (), generator=generator))
        return {
            name: self._entry(name, shape, dtype, index, label, generator)
            for name, (shape, dtype) in self.entries.items()
        }

    def _entry(
        self, name: str, shape: tuple[int, ...], dtype: str, index: int, label: int, generator: torch.Generator
    ) -> Tensor:
        kind = getattr(torch, dtype)
        if kind.is_floating_point:
            colours = torch.sin(label * torch.arange(1.0, shape[0] + 1)) if shape else torch.zeros(())
            noise = torch.randn(shape, generator=generator)
            return (noise + colours.view(-1, *(1,) * (len(shape) - 1))).to(kind) if shape else noise.to(kind)
        if "mask" in name:
            return torch.ones(shape, dtype=kind)
        if not shape:
            return torch.tensor(label if "label" in name else index % 1000, dtype=kind)
        start = index + (name in _SHIFTED)
        return self.text[start : start + shape[0]].to(kind).reshape(shape[0], *(1,) * (len(shape) - 1)).expand(shape)


def _codes(path: str | None) -> Tensor:
    """ASCII codes of a file, or of the text that comes with the package."""
    file = Path(path) if path else Path(__file__).with_name("text.txt")
    try:
        read = bytearray(file.read_bytes())
    except OSError as error:
        raise RunError(f"--data {path} cannot be read: {error.strerror}", "a text file", "check the path") from error
    return torch.frombuffer(read, dtype=torch.uint8).long().clamp(max=CHARACTERS - 1) if read else torch.zeros(0)


def _check_text(text: Tensor, vocabulary: int, seq: int, path: str | None) -> None:
    if vocabulary < CHARACTERS:
        raise RunError(
            f"a vocabulary of {vocabulary}", f"at least {CHARACTERS}, for the characters of a text", "--set vocab=128"
        )
    if len(text) < seq + 2:
        name = path or "the built-in text"
        raise RunError(f"{name} has {len(text)} characters", f"more than {seq + 1}, one sample", "use a longer text")
