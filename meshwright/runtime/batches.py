"""A rank's part of the global batch, micro-batch by micro-batch.

Micro-batch k of m is the k-th of m equal runs of rows of the global batch, whatever the plan: so what couples samples
is the same under every plan. Each rank reads its piece of each tensor that its stage needs, and nothing of the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from meshwright.errors import RunError
from meshwright.layout import Layout
from meshwright.plan import Plan, Stage
from meshwright.runtime.sources import region

Index = tuple[slice | list[int], ...]
"""Where a rank reads a tensor of the global batch: `tensor[index]` is its part."""

Region = tuple[slice, ...]


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
            name: plan.microbatches if entry.shape[0] == plan.batch else 1 for name, entry in plan.inputs.items()
        }
        self.regions: dict[int, dict[str, Region]] = {}
        for stage in own_stages(plan, rank):
            where = own_coordinates(plan, stage, rank)
            self.regions[stage.first] = {
                name: region(Layout.parse(text), self._micro_shape(name), stage.mesh.sizes, where)
                for name, text in stage.inputs.items()
            }
        needed = {name for found in self.regions.values() for name in found}
        self.names = [name for name in plan.inputs if name in needed]

    def index(self, name: str) -> Index:
        """The rank's part of one tensor: slices where its rows are one run, else the rows' numbers first."""
        rows, *rest = self._read_region(name)
        height, times = self.plan.inputs[name].shape[0] // self.cut[name], self.cut[name]
        if times == 1 or rows.stop - rows.start == height:
            return (slice(rows.start, rows.start + (rows.stop - rows.start) * times), *rest)
        return ([k * height + row for k in range(times) for row in range(rows.start, rows.stop)], *rest)

    def split(self, batch: object, whole: bool) -> list[dict[str, Tensor]]:
        """The rank's micro-batches. `whole`: the batch is the global one, of which this rank takes its part."""
        given = self._named(batch)
        parts = {name: self._parts(name, given[name], whole) for name in self.names}
        return [{name: parts[name][k] for name in self.names} for k in range(self.plan.microbatches)]

    def of_stage(self, first: int, read: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What the stage that begins at segment `first` takes of a micro-batch as this rank reads it."""
        found = {}
        for name, where in self.regions[first].items():
            held = self._read_region(name)
            inner = tuple(slice(a.start - b.start, a.stop - b.start) for a, b in zip(where, held, strict=True))
            found[name] = read[name] if where == held else read[name][inner].contiguous()
        return found

    def _named(self, batch: object) -> dict[str, object]:
        every = list(self.plan.inputs)
        names = ", ".join(every)
        if isinstance(batch, Mapping):
            given = dict(batch)
        elif isinstance(batch, tuple | list) and len(batch) == len(every):
            given = dict(zip(every, batch, strict=True))
        else:
            size = f" of {len(batch)}" if isinstance(batch, tuple | list) else ""
            raise RunError(f"a batch that is a {type(batch).__name__}{size}", f"a tuple or dict of {names}")
        missing, unknown = set(self.names) - set(given), set(given) - set(every)
        if missing or unknown:
            wanted = ", ".join(self.names) or "nothing, on this rank"
            raise RunError(f"a batch of {', '.join(map(str, given)) or 'nothing'}", wanted)
        return given

    def _parts(self, name: str, tensor: object, whole: bool) -> Sequence[Tensor]:
        found = self._checked(name, tensor, whole)
        found = found[self.index(name)] if whole else found
        times = self.cut[name]
        pieces = found.to(self.device).chunk(times) if times > 1 else [found.to(self.device)]
        return [piece.contiguous() for piece in pieces] * (self.plan.microbatches // times)

    def _checked(self, name: str, tensor: object, whole: bool) -> Tensor:
        entry = self.plan.inputs[name]
        dtype = getattr(torch, entry.dtype)
        if isinstance(tensor, Tensor) and tensor.is_floating_point() and dtype == torch.bfloat16:
            tensor = tensor.to(dtype)  # the step computes in it; data sets seldom come in it
        if not isinstance(tensor, Tensor) or tensor.dtype != dtype:
            kind = str(tensor.dtype) if isinstance(tensor, Tensor) else type(tensor).__name__
            raise RunError(f"batch entry {name!r} is {kind}", f"a tensor of {dtype}", "convert it")
        expected = entry.shape if whole else self._local_shape(name)
        if tuple(tensor.shape) != expected:
            kind = "the whole batch" if whole else f"this rank's slice (layout {self._layout(name)})"
            raise RunError(
                f"batch tensor {name!r} has shape {tuple(tensor.shape)}",
                f"{expected}, {kind} of the planned {entry.shape}",
                "pass global_batch=True with the whole batch, use `trainer.data_slice()`, or plan again",
            )
        return tensor

    def _layout(self, name: str) -> str:
        return next(stage.inputs[name] for stage in self.plan.stages if name in self.regions.get(stage.first, {}))

    def _local_shape(self, name: str) -> tuple[int, ...]:
        lengths = [part.stop - part.start for part in self._read_region(name)]
        return (lengths[0] * self.cut[name], *lengths[1:])

    def _micro_shape(self, name: str) -> tuple[int, ...]:
        rows, *rest = self.plan.inputs[name].shape
        return (rows // self.cut[name], *rest)

    def _read_region(self, name: str) -> Region:
        """What this rank reads of each micro-batch: one piece, or all where its stages want different ones."""
        found = {str(regions[name]): regions[name] for regions in self.regions.values() if name in regions}
        if len(found) == 1:
            return next(iter(found.values()))
        return tuple(slice(0, length) for length in self._micro_shape(name))
