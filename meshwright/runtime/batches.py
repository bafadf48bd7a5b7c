"""A rank's part of the global batch, micro-batch by micro-batch.

Micro-batch k of m is the k-th of m equal runs of rows of the global batch, whatever the plan: so what couples samples
is the same under every plan. Each rank reads its piece of each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from meshwright.errors import RunError
from meshwright.layout import Layout
from meshwright.plan import Plan
from meshwright.runtime.sources import region

Index = tuple[slice | list[int], ...]
"""Where a rank reads a tensor of the global batch: `tensor[index]` is its part."""


class Batches:
    """Cuts, checks and places what the user passes. `coordinates`: this rank's, on the plan's mesh."""

    def __init__(self, plan: Plan, coordinates: Sequence[int], device: torch.device) -> None:
        self.plan, self.coordinates, self.device = plan, coordinates, device
        self.names = list(plan.inputs)
        self.layouts = {name: Layout.parse(text) for name, text in plan.stages[0].inputs.items()}
        self.cut = {
            name: plan.microbatches if entry.shape[0] == plan.batch else 1 for name, entry in plan.inputs.items()
        }

    def index(self, name: str) -> Index:
        """The rank's part of one tensor: slices where its rows are one run, else the rows' numbers first."""
        rows, *rest = self._micro_region(name)
        height, times = self.plan.inputs[name].shape[0] // self.cut[name], self.cut[name]
        if times == 1 or rows.stop - rows.start == height:
            return (slice(rows.start, rows.start + (rows.stop - rows.start) * times), *rest)
        return ([k * height + row for k in range(times) for row in range(rows.start, rows.stop)], *rest)

    def split(self, batch: object, whole: bool) -> list[dict[str, Tensor]]:
        """The rank's micro-batches. `whole`: the batch is the global one, of which this rank takes its part."""
        given = self._named(batch)
        parts = {name: self._parts(name, given[name], whole) for name in self.names}
        return [{name: parts[name][k] for name in self.names} for k in range(self.plan.microbatches)]

    def _named(self, batch: object) -> dict[str, object]:
        names = ", ".join(self.names)
        if isinstance(batch, Mapping):
            given = dict(batch)
        elif isinstance(batch, tuple | list) and len(batch) == len(self.names):
            given = dict(zip(self.names, batch, strict=True))
        else:
            size = f" of {len(batch)}" if isinstance(batch, tuple | list) else ""
            raise RunError(f"a batch that is a {type(batch).__name__}{size}", f"a tuple or dict of {names}")
        if set(given) != set(self.names):
            raise RunError(f"a batch of {', '.join(map(str, given)) or 'nothing'}", names)
        return given

    def _parts(self, name: str, tensor: object, whole: bool) -> Sequence[Tensor]:
        found = self._checked(name, tensor, whole)
        found = found[self.index(name)] if whole else found
        times = self.cut[name]
        pieces = found.to(self.device).chunk(times) if times > 1 else [found.to(self.device)]
        return [piece.contiguous() for piece in pieces] * (self.plan.microbatches // times)

    def _checked(self, name: str, tensor: object, whole: bool) -> Tensor:
        entry, layout = self.plan.inputs[name], self.layouts[name]
        dtype = getattr(torch, entry.dtype)
        if isinstance(tensor, Tensor) and tensor.is_floating_point() and dtype == torch.bfloat16:
            tensor = tensor.to(dtype)  # the step computes in it; data sets seldom come in it
        if not isinstance(tensor, Tensor) or tensor.dtype != dtype:
            kind = str(tensor.dtype) if isinstance(tensor, Tensor) else type(tensor).__name__
            raise RunError(f"batch entry {name!r} is {kind}", f"a tensor of {dtype}", "convert it")
        expected = entry.shape if whole else self._local_shape(name)
        if tuple(tensor.shape) != expected:
            kind = "the whole batch" if whole else f"this rank's slice (layout {layout})"
            raise RunError(
                f"batch tensor {name!r} has shape {tuple(tensor.shape)}",
                f"{expected}, {kind} of the planned {entry.shape}",
                "pass global_batch=True with the whole batch, use `trainer.data_slice()`, or plan again",
            )
        return tensor

    def _local_shape(self, name: str) -> tuple[int, ...]:
        lengths = [part.stop - part.start for part in self._micro_region(name)]
        return (lengths[0] * self.cut[name], *lengths[1:])

    def _micro_region(self, name: str) -> tuple[slice, ...]:
        rows, *rest = self.plan.inputs[name].shape
        shape = (rows // self.cut[name], *rest)
        return region(self.layouts[name], shape, self.plan.mesh.sizes, self.coordinates)
