"""A rank's part of the global batch, micro-batch by micro-batch.

Micro-batch k of m is the k-th of m equal runs of rows of the global batch (the last may be shorter), whatever the
plan: so what couples samples is the same under every plan. Each rank reads its piece of each tensor that its stage
needs, and nothing of the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from meshwright.capture.precision import HALVES
from meshwright.errors import RunError
from meshwright.layout import Layout
from meshwright.models.form import FlatBatch, entries_of, tensors_in
from meshwright.plan import Plan, Stage
from meshwright.runtime.weights.regions import region

Index = tuple[slice | list[int], ...]
"""Where a rank reads a tensor of the global batch: `tensor[index]` is its part."""

Region = tuple[slice, ...]
Regions = dict[int, dict[str, Region]]
"""By the first segment of a stage, then by name."""


def own_stages(plan: Plan, rank: int) -> tuple[Stage, ...]:
    """The stages that a rank runs: several where the pipeline is interleaved."""
    return plan.groups[plan.stage_at(rank)] if len(plan.stages) > 1 else plan.stages


def own_coordinates(plan: Plan, stage: Stage, rank: int) -> tuple[int, ...]:
    """A rank's place on a stage's mesh; the ranks of a plan of one stage run through it with the last axis fastest."""
    return stage.mesh.coordinates(stage.mesh.ranks.index(rank) if len(plan.stages) > 1 else rank)


class Batches:
    """Cuts, checks and places what the user passes, for one rank."""

    def __init__(self, plan: Plan, device: torch.device, rank: int | None = None) -> None:
        self.plan, self.device = plan, device
        if rank is None:
            rank = dist.get_rank() if dist.is_initialized() else 0
        self.cut = {
            name: plan.microbatches if entry.shape[:1] == (plan.batch,) else 1 for name, entry in plan.inputs.items()
        }
        self.rows = [part.microbatch for part, times in plan.cut for _ in range(times)]
        self.regions: dict[int, Regions] = {rows: {} for rows in self.rows}
        for rows, found in self.regions.items():
            for stage in own_stages(plan, rank):
                where = own_coordinates(plan, stage, rank)
                found[stage.first] = {
                    name: region(Layout.parse(text), self._micro_shape(name, rows), stage.mesh.sizes, where)
                    for name, text in stage.inputs.items()
                }
        needed = {name for found in self.regions[self.rows[0]].values() for name in found}
        self.names = [name for name in plan.inputs if name in needed]

    def index(self, name: str) -> Index:
        """The rank's part of one tensor: slices where its rows are one run, else the rows' numbers first."""
        found = self._read_region(name, self.rows[0])
        if self.cut[name] == 1 or not found:
            return found
        rows, *rest = found
        if rows.stop - rows.start == self.rows[0]:
            return (slice(0, self.plan.batch), *rest)
        places = [self._read_region(name, height)[0] for height in self.rows]
        return ([k * self.rows[0] + row for k, own in enumerate(places) for row in range(own.start, own.stop)], *rest)

    def split(self, batch: object, whole: bool) -> list[dict[str, Tensor]]:
        """The rank's micro-batches. `whole`: the batch is the global one, of which this rank takes its part."""
        given = self.named(batch)
        for name in given if whole else ():  # also what other ranks read: all refuse a batch, or none
            self._checked(name, given[name], whole)
        parts = {name: self._parts(name, given[name], whole) for name in self.names}
        return [{name: parts[name][k] for name in self.names} for k in range(self.plan.microbatches)]

    def of_stage(self, first: int, number: int, read: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What the stage that begins at segment `first` takes of micro-batch `number` as this rank reads it."""
        found = {}
        for name, where in self.regions[self.rows[number]][first].items():
            held = self._read_region(name, self.rows[number])
            inner = tuple(slice(a.start - b.start, a.stop - b.start) for a, b in zip(where, held, strict=True))
            found[name] = read[name] if where == held else read[name][inner].contiguous()
        return found

    def named(self, batch: object) -> dict[str, object]:
        """What the user passes, tensors by the plan's names for them."""
        given, differs = self._entries(batch), list[str]()
        flat = not self.plan.form or isinstance(batch, FlatBatch)
        unknown = set(given) - set(self.plan.inputs if flat else entries_of(self.plan.form))
        if not flat and not unknown:
            given, differs = tensors_in(self.plan.form, given)
        missing = set(self.names) - set(given)
        if differs:
            raise RunError(
                f"a batch in which {'; '.join(differs)}",
                "the values and the form that the plan was made for",
                "plan for these too, and pass mw.parallelize a list of plans; or make a tensor of what changes",
            )
        if missing or unknown:
            wanted = ", ".join(entries_of(self.plan.form) or self.names) or "nothing, on this rank"
            todo = "pass a dict with these names; others of the planned batch may be left out"
            raise RunError(f"a batch of {', '.join(map(str, given)) or 'nothing'}", wanted, todo)
        return given

    def differs(self, batch: object) -> bool:
        """Whether a batch has other plain values than the plan was made for, or another form."""
        if not self.plan.form or isinstance(batch, FlatBatch):
            return False
        return bool(tensors_in(self.plan.form, self._entries(batch))[1])

    def _entries(self, batch: object) -> dict[str, object]:
        every = list(entries_of(self.plan.form) or self.plan.inputs)
        names = ", ".join(every)
        if isinstance(batch, Tensor):
            batch = (batch,)
        if isinstance(batch, Mapping):
            return dict(batch)
        if isinstance(batch, tuple | list) and len(batch) == len(every):
            return dict(zip(every, batch, strict=True))
        size = f" of {len(batch)}" if isinstance(batch, tuple | list) else ""
        raise RunError(
            f"a batch that is a {type(batch).__name__}{size}",
            f"a tuple or dict of {names}",
            f"pass {len(every)} in this order, or a dict by these names",
        )

    def _parts(self, name: str, tensor: object, whole: bool) -> Sequence[Tensor]:
        found = self._checked(name, tensor, whole)
        found = found[self.index(name)] if whole else found
        placed = found.to(self.device)
        if self.cut[name] == 1:
            return [placed.contiguous()] * self.plan.microbatches
        return [piece.contiguous() for piece in torch.split(placed, self._heights(name))]

    def _checked(self, name: str, tensor: object, whole: bool) -> Tensor:
        entry = self.plan.inputs[name]
        dtype = getattr(torch, entry.dtype)
        if isinstance(tensor, Tensor) and tensor.is_floating_point() and dtype in HALVES:
            tensor = tensor.to(dtype)  # the step computes in it; data sets seldom come in it
        if not isinstance(tensor, Tensor) or tensor.dtype != dtype:
            kind = str(tensor.dtype) if isinstance(tensor, Tensor) else type(tensor).__name__
            raise RunError(f"batch entry {name!r} is {kind}", f"a tensor of {dtype}", "convert it")
        expected = entry.shape if whole else self.local_shape(name)
        if tuple(tensor.shape) != expected:
            kind = "the whole batch" if whole else f"this rank's slice (layout {self._layout(name)})"
            other = "pass global_batch=True with the whole batch, use `trainer.data_slice()`, or plan again"
            raise RunError(
                f"batch tensor {name!r} has shape {tuple(tensor.shape)}",
                f"{expected}, {kind} of the planned {entry.shape}",
                "give as many samples as were planned, or plan again" if whole else other,
            )
        return tensor

    def _layout(self, name: str) -> str:
        own = self.regions[self.rows[0]]
        return next(stage.inputs[name] for stage in self.plan.stages if name in own.get(stage.first, {}))

    def local_shape(self, name: str) -> tuple[int, ...]:
        """Of this rank's part of a tensor."""
        lengths = [part.stop - part.start for part in self._read_region(name, self.rows[0])]
        return tuple(lengths) if self.cut[name] == 1 else (sum(self._heights(name)), *lengths[1:])

    def _heights(self, name: str) -> list[int]:
        """Rows that this rank reads of each micro-batch."""
        return [own.stop - own.start for own in (self._read_region(name, rows)[0] for rows in self.rows)]

    def _micro_shape(self, name: str, rows: int) -> tuple[int, ...]:
        whole = self.plan.inputs[name].shape
        return whole if self.cut[name] == 1 else (rows, *whole[1:])

    def _read_region(self, name: str, rows: int) -> Region:
        """What this rank reads of a micro-batch of so many rows: one piece, or all where its stages want different
        ones."""
        found = {str(regions[name]): regions[name] for regions in self.regions[rows].values() if name in regions}
        if len(found) == 1:
            return next(iter(found.values()))
        return tuple(slice(0, length) for length in self._micro_shape(name, rows))


def check_detached(entries: Mapping[str, object]) -> None:
    """Plain PyTorch would leave gradients in these, or in what has made them."""
    for name, entry in entries.items():
        if isinstance(entry, Tensor) and entry.requires_grad:
            raise RunError(
                f"batch entry {name!r} requires a gradient",
                "tensors that no gradient goes back to: a step leaves gradients in the model's parameters alone",
                f"pass {name}.detach(); to train what makes it, put that into the model, and plan both together",
            )
