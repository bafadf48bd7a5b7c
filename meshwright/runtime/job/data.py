"""Data for a first run, without a download: characters of a text, or noise around a colour that tells the class."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from meshwright.errors import RunError
from meshwright.models.reference import Reference
from meshwright.plan import Plan
from meshwright.runtime.step.ranges import Range

CHARACTERS = 128
WHOLE_BYTES = 2 << 30
"""Of a model that every rank may build whole."""
SAMPLES = 4096
"""How many samples of noise there are; a text has one for each character."""

_WHOLE = ("int64", "int32")
_SHIFTED = ("targets",)
"""Text inputs that hold the next character; any other holds the same."""


class BuiltIn:
    """Samples with the names, sizes and dtypes of a plan's batch; a function of their number alone. Whole numbers are
    folded into the ranges that the model reads."""

    def __init__(
        self,
        plan: Plan,
        settings: Mapping[str, Any],
        text: str | None = None,
        ranges: Mapping[str, Range] = MappingProxyType({}),
    ) -> None:
        self.entries = {name: (entry.shape[1:], entry.dtype) for name, entry in plan.inputs.items()}
        self.ranges, self.source = ranges, text or "the text that comes with meshwright"
        self.classes = settings.get("classes", settings.get("num_labels")) or self._targets() or 2
        read = [(name, shape) for name, (shape, dtype) in self.entries.items() if dtype in _WHOLE and shape]
        self.seq = max((shape[0] for _, shape in read), default=0)
        self.text = torch.zeros(0, dtype=torch.int64)
        if self.seq:
            self.text = _codes(text)
            _check_text(self.text, self.seq, text)
        elif text:
            raise RunError(
                f"--data {text} for a model that reads {', '.join(self.entries)}",
                "a model that reads text",
                "leave --data out",
            )
        if text:
            _check_vocabulary([self.ranges[name].count for name, _ in read if name in self.ranges])

    def _targets(self) -> int | None:
        """How many classes a target of one number for each sample has."""
        found = [self.ranges[name] for name, (shape, _) in self.entries.items() if name in self.ranges and not shape]
        return next((allowed.count for allowed in found if allowed.targets), None)

    def sum(self) -> int:
        """Of the text; data of other kinds is a function of its number alone."""
        return zlib.crc32(self.text.numpy().tobytes())

    def __str__(self) -> str:
        """What it is, for the user."""
        if self.seq:
            return f"{len(self):,} samples of {self.seq} characters of {self.source}"
        return f"{len(self):,} samples of noise, in the sizes of the batch"

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
        return self._inside(name, self._numbers(name, shape, index, label)).to(kind)

    def _numbers(self, name: str, shape: tuple[int, ...], index: int, label: int) -> Tensor:
        if not shape:
            told = "label" in name or (name in self.ranges and self.ranges[name].targets)
            return torch.tensor(label if told else index % 1000)
        start = index + (name in _SHIFTED)
        return self.text[start : start + shape[0]].reshape(shape[0], *(1,) * (len(shape) - 1)).expand(shape)

    def _inside(self, name: str, numbers: Tensor) -> Tensor:
        return numbers % self.ranges[name].count if name in self.ranges else numbers


class OwnBatch:
    """The samples of a batch that a function of one's own returns, again and again."""

    def __init__(self, batch: Mapping[str, Tensor], reference: str, least: int) -> None:
        """least: samples of a step."""
        self.batch, self.reference = batch, reference
        self.rows = len(next(iter(batch.values())))
        self.count = max(self.rows, least)

    def sum(self) -> int:
        found = 0
        for tensor in self.batch.values():
            found = zlib.crc32(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes(), found)
        return found

    def __str__(self) -> str:
        return f"the batch that {self.reference} returns ({self.rows:,} samples), in every step"

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int, /) -> dict[str, Tensor]:
        return {name: tensor[index % self.rows] for name, tensor in self.batch.items()}


def is_small(plan: Plan) -> bool:
    """Whether a model may be built whole on each rank."""
    return sum(plan.weight_bytes.values()) <= WHOLE_BYTES


def samples_of(plan: Plan, reference: Reference, text: str | None, ranges: Mapping[str, Range]) -> BuiltIn | OwnBatch:
    """What a run learns from: the user's own batch, where there is one and no text is given. The function that returns
    it builds its model whole, so that of a large model the batch is not asked for."""
    own = reference.family.own_batch() if is_small(plan) and not text else {}
    alike = {name: (entry.shape[1:], entry.dtype) for name, entry in plan.inputs.items()}
    found = {name: (tuple(tensor.shape[1:]), str(tensor.dtype).removeprefix("torch.")) for name, tensor in own.items()}
    if own and found == alike and len({len(tensor) for tensor in own.values() if tensor.dim()}) == 1:
        return OwnBatch(own, str(reference), plan.batch)
    return BuiltIn(plan, dict(reference.settings), text, ranges)


def _codes(path: str | None) -> Tensor:
    """ASCII codes of a file, or of the text that comes with the package."""
    file = Path(path) if path else Path(__file__).with_name("text.txt")
    try:
        read = bytearray(file.read_bytes())
    except OSError as error:
        raise RunError(f"--data {path} cannot be read: {error.strerror}", "a text file", "check the path") from error
    return torch.frombuffer(read, dtype=torch.uint8).long().clamp(max=CHARACTERS - 1) if read else torch.zeros(0)


def _check_text(text: Tensor, seq: int, path: str | None) -> None:
    if len(text) < seq + 2:
        name = path or "the built-in text"
        raise RunError(f"{name} has {len(text)} characters", f"more than {seq + 1}, one sample", "use a longer text")


def _check_vocabulary(counts: Sequence[int]) -> None:
    """Of a text that the user gives, which is not to be folded."""
    if min(counts, default=CHARACTERS) < CHARACTERS:
        raise RunError(
            f"--data for a vocabulary of {min(counts)}",
            f"at least {CHARACTERS}, for the characters of a text",
            f"build the model for {CHARACTERS} (of a family: --set vocab={CHARACTERS}), or leave --data out",
        )
