"""A data set read by ranks: each its own part of every global batch, from a position that checkpoints keep."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, cast, overload

import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from meshwright.errors import RunError, counted, what_is
from meshwright.models.form import FlatBatch, entries_of, tensors_in
from meshwright.plan import Plan
from meshwright.runtime.step.batches import Batches
from meshwright.runtime.variants import smaller


class Samples(Protocol):
    """A map-style data set: a sample is a dict by the batch's names, or a tuple in their order."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


class _Reader:
    """What loaders share: this rank's rows of a batch, of samples by name."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.batches = plan, Batches(plan, torch.device("cpu"))
        self.where = {name: self.batches.index(name) for name in self.batches.names if plan.inputs[name].shape}
        self.rows = {name: _rows(index[0]) for name, index in self.where.items()}
        self.needed = sorted({row for listed in self.rows.values() for row in listed})

    def stacked(self, read: Mapping[int, Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """read: samples by their row in the global batch."""
        return FlatBatch(
            (name, torch.stack([read[row][name] for row in self.rows[name]])[(slice(None), *index[1:])])
            for name, index in self.where.items()
        )

    def sample(self, number: int, sample: Any) -> dict[str, Tensor]:
        names = [name for name, entry in self.plan.inputs.items() if entry.shape]  # others are not of a sample
        entries = list(entries_of(self.plan.form) or names)
        if isinstance(sample, Mapping):
            found = dict(sample)
        elif isinstance(sample, tuple | list):
            found = dict(zip(entries, sample, strict=False))
        else:
            found = {entries[0]: sample}
        if self.plan.form:
            found, differs = tensors_in(self.plan.form, found)
            if differs:
                raise RunError(f"sample {number} in which {'; '.join(differs)}", "what was planned", "plan for it")
        found = {name: value for name, value in found.items() if name in names or name not in self.plan.inputs}
        if set(found) != set(names):
            raise RunError(f"sample {number} of {', '.join(map(str, found)) or 'nothing'}", ", ".join(names))
        return {name: torch.as_tensor(value) for name, value in found.items()}


class Loader(_Reader):
    """Iterating gives this rank's part of each batch of an epoch; the next `for` goes on with the next epoch.

    The order of samples depends on seed and epoch alone, so it is the same on every rank and under every plan.
    `samples` counts those read so far by all ranks together, `numbers` are those of the last batch. A last batch that
    would not be full is left out, unless drop_last is False: the trainer then runs it with as many samples as it has.
    """

    def __init__(self, dataset: Samples, plan: Plan, seed: int, shuffle: bool, drop_last: bool = True) -> None:
        super().__init__(plan)
        self.dataset, self.seed, self.shuffle = dataset, seed, shuffle
        self.length, self.samples = len(dataset) // plan.batch, 0
        self.numbers: Sequence[int] = ()
        self.per_epoch, rest = self.length * plan.batch, len(dataset) % plan.batch
        self.last: _Reader | None = None
        if rest and not drop_last and self.length:
            self.last, self.length, self.per_epoch = _Reader(_smaller(plan, rest)), self.length + 1, len(dataset)
        if not self.length:
            raise RunError(f"a data set of {len(dataset)} samples", f"at least {plan.batch}, one global batch")

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        epoch, done = divmod(self.samples, self.per_epoch)
        order = self._order(epoch)
        for number in range(done // self.plan.batch, self.length):
            self.samples = epoch * self.per_epoch + min(self.per_epoch, (number + 1) * self.plan.batch)
            self.numbers = order[number * self.plan.batch : (number + 1) * self.plan.batch]
            yield self._read(self.numbers)

    def state_dict(self) -> dict[str, Any]:
        return {"samples": self.samples, "seed": self.seed}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Under another global batch, from the last whole batch before the place."""
        self.seed = state["seed"]
        epoch, done = divmod(state["samples"], self.per_epoch)
        self.samples = epoch * self.per_epoch + done // self.plan.batch * self.plan.batch

    def _order(self, epoch: int) -> list[int]:
        if not self.shuffle:
            return list(range(len(self.dataset)))
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
        order: list[int] = torch.randperm(len(self.dataset), generator=generator).tolist()
        return order

    def _read(self, numbers: Sequence[int]) -> dict[str, Tensor]:
        reader = self.last if self.last is not None and len(numbers) < self.plan.batch else self
        return reader.stacked({row: self.sample(numbers[row], self.dataset[numbers[row]]) for row in reader.needed})


class StreamLoader(_Reader):
    """The same of a data set that can only be iterated: every rank goes through it and keeps its rows of each batch.

    The stream must be the same on every rank, not cut by rank. One that ends begins again with the next `for`, and what
    would not fill a batch is left out. A position that was loaded is reached by reading up to it.
    """

    def __init__(self, dataset: Iterable[Any], plan: Plan) -> None:
        super().__init__(plan)
        self.dataset, self.samples, self.taken = dataset, 0, 0

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        skipped, self.taken = self.taken, 0
        wanted, read, row = set(self.needed), dict[int, dict[str, Tensor]](), 0
        for number, sample in enumerate(self.dataset):
            if number < skipped:
                continue
            if row in wanted:
                read[row] = self.sample(number, sample)
            row += 1
            if row == self.plan.batch:
                self.samples, self.taken = self.samples + row, number + 1
                yield self.stacked(read)
                read, row = {}, 0
        self.taken = 0

    def state_dict(self) -> dict[str, Any]:
        return {"samples": self.samples, "taken": self.taken}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        self.samples, self.taken = state["samples"], state.get("taken", state["samples"])


@overload
def loader(dataset: Samples, plan: Plan, *, seed: int = 0, shuffle: bool = True, drop_last: bool = True) -> Loader: ...
@overload
def loader(
    dataset: Iterable[Any], plan: Plan, *, seed: int = 0, shuffle: bool = True, drop_last: bool = True
) -> StreamLoader: ...
def loader(
    dataset: Samples | Iterable[Any], plan: Plan, *, seed: int = 0, shuffle: bool = True, drop_last: bool = True
) -> Loader | StreamLoader:
    """This rank's reader of a data set; give it to `save` and `load` to keep its position.

    dataset: one with a length, read by number, in an order that `seed` and `shuffle` say; or one that is iterated (an
    `IterableDataset`), in its own order. drop_last: leave out what does not fill a batch (always, of a stream).
    """
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
        if not isinstance(dataset, Iterable):
            raise RunError(f"{what_is(dataset)} as the data set", "samples by number, or an iterable", "give one")
        return StreamLoader(dataset, plan)
    return Loader(cast(Samples, dataset), plan, seed, shuffle, drop_last)


def _smaller(plan: Plan, batch: int) -> Plan:
    found = smaller(plan, batch)
    if found is None:
        raise RunError(
            f"a last batch of {counted(batch, 'sample')}",
            "as many as the axes that split samples divide",
            "pass drop_last=True, or choose another global batch",
        )
    return found


def _rows(index: slice | list[int]) -> list[int]:
    return list(range(index.start, index.stop)) if isinstance(index, slice) else index
