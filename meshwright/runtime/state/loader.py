"""A data set read by ranks: each its own part of every global batch, from a position that checkpoints keep."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from meshwright.errors import RunError
from meshwright.plan import Plan
from meshwright.runtime.step.batches import Batches


class Samples(Protocol):
    """A map-style data set: a sample is a dict by the batch's names, or a tuple in their order."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


class Loader:
    """Iterating gives this rank's part of each batch of an epoch; the next `for` goes on with the next epoch.

    The order of samples depends on seed and epoch alone, so it is the same on every rank and under every plan.
    `samples` counts those read so far by all ranks together; a last batch that would not be full is left out.
    """

    def __init__(self, dataset: Samples, plan: Plan, seed: int, shuffle: bool) -> None:
        self.dataset, self.plan, self.seed, self.shuffle = dataset, plan, seed, shuffle
        self.batches = Batches(plan, torch.device("cpu"))
        self.length = len(dataset) // plan.batch
        self.samples = 0
        if not self.length:
            raise RunError(f"a data set of {len(dataset)} samples", f"at least {plan.batch}, one global batch")

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        per_epoch = self.length * self.plan.batch
        epoch, done = divmod(self.samples, per_epoch)
        order = self._order(epoch)
        for number in range(done // self.plan.batch, self.length):
            self.samples = epoch * per_epoch + (number + 1) * self.plan.batch
            yield self._read(order[number * self.plan.batch : (number + 1) * self.plan.batch])

    def state_dict(self) -> dict[str, Any]:
        return {"samples": self.samples, "seed": self.seed}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Under another global batch, from the last whole batch before the place."""
        self.seed = state["seed"]
        self.samples = state["samples"] // self.plan.batch * self.plan.batch

    def _order(self, epoch: int) -> list[int]:
        if not self.shuffle:
            return list(range(len(self.dataset)))
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
        order: list[int] = torch.randperm(len(self.dataset), generator=generator).tolist()
        return order

    def _read(self, numbers: Sequence[int]) -> dict[str, Tensor]:
        where = {name: self.batches.index(name) for name in self.batches.names}
        rows = {name: _rows(index[0]) for name, index in where.items()}
        read = {row: self._sample(numbers[row]) for row in sorted({row for listed in rows.values() for row in listed})}
        return {
            name: torch.stack([read[row][name] for row in rows[name]])[(slice(None), *where[name][1:])]
            for name in where
        }

    def _sample(self, number: int) -> dict[str, Tensor]:
        sample, names = self.dataset[number], list(self.plan.inputs)
        if isinstance(sample, Mapping):
            found = dict(sample)
        elif isinstance(sample, tuple | list):
            found = dict(zip(names, sample, strict=False))
        else:
            found = {names[0]: sample}
        if set(found) != set(names):
            raise RunError(f"sample {number} of {', '.join(map(str, found)) or 'nothing'}", ", ".join(names))
        return {name: torch.as_tensor(value) for name, value in found.items()}


def loader(dataset: Samples, plan: Plan, *, seed: int = 0, shuffle: bool = True) -> Loader:
    """This rank's reader of a data set; give it to `save` and `load` to keep its position."""
    return Loader(dataset, plan, seed, shuffle)


def _rows(index: slice | list[int]) -> list[int]:
    return list(range(index.start, index.stop)) if isinstance(index, slice) else index
