"""Batches of other sizes than the first plan's: a smaller last one, and sequence lengths with plans of their own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import ceil

from torch import Tensor

from meshwright.cutting import cut_batch
from meshwright.errors import PlanError, RunError
from meshwright.layout import Layout
from meshwright.plan import Plan
from meshwright.runtime.step.batches import Batches


def check_storage(first: Plan, other: Plan) -> None:
    """Plans of one trainer store every parameter alike, on the same stages."""
    stages = [
        [(stage.mesh.names, stage.mesh.sizes, stage.mesh.ranks) for stage in plan.stages] for plan in (first, other)
    ]
    cuts = [[(stage.first, stage.end) for stage in plan.stages] for plan in (first, other)]
    if stages[0] != stages[1] or (len(first.stages) > 1 and cuts[0] != cuts[1]):
        raise PlanError(
            f"a plan of stages {stages[1]} together with one of {stages[0]}",
            "the same meshes and stages in all plans of one trainer",
            f"pin the mesh of the first plan (mesh={'x'.join(map(str, first.stages[0].mesh.sizes))}) in the others",
        )
    for name, entry in first.parameters.items():
        given = other.parameters.get(name)
        own = (entry.storage, entry.dtype, entry.offload)
        if given is None or (given.storage, given.dtype, given.offload) != own:
            there = (
                f" with {given.offload or 'nothing'} on the host" if given and given.offload != entry.offload else ""
            )
            told = "no such parameter" if given is None else f"{given.storage} in {given.dtype}{there}"
            raise PlanError(
                f"{name} is stored {entry.storage} in {entry.dtype} by one plan, by another {told}",
                "the same storage in all plans of one trainer",
                "plan the others with the first one's pins, such as zero=3, tp=2",
            )


def smaller(plan: Plan, batch: int) -> Plan | None:
    """The same choices for fewer samples; None where the axes that split samples do not divide them."""
    if not 0 < batch < plan.batch:
        return None
    inputs = {
        name: replace(entry, shape=(batch, *entry.shape[1:])) if entry.shape[:1] == (plan.batch,) else entry
        for name, entry in plan.inputs.items()
    }
    for microbatches in _counts(plan, batch):
        each, last = cut_batch(batch, microbatches)
        if last > 0 and each % _split(plan) == 0 and last % _split(plan) == 0:
            return replace(plan, batch=batch, inputs=inputs, microbatches=microbatches)
    return None


def _counts(plan: Plan, batch: int) -> Iterator[int]:
    """Numbers of micro-batches, the planned one first; a pipeline's list is made for that one."""
    yield min(plan.microbatches, batch) if len(plan.stages) == 1 else plan.microbatches
    if len(plan.stages) == 1:
        yield from range(ceil(batch / plan.microbatch), batch + 1)


def _split(plan: Plan) -> int:
    """Into how many parts samples are split on any stage."""
    most = 1
    for stage in plan.stages:
        for name, text in stage.inputs.items():
            if plan.inputs[name].shape[:1] == (plan.batch,):
                parts = 1
                for axis in Layout.parse(text).sharding(0):
                    parts *= stage.mesh.sizes[axis]
                most = max(most, parts)
    return most


def fits(batches: Batches, given: Mapping[str, object], whole: bool) -> bool:
    """Whether a batch has the sizes that a plan's batches have."""
    wanted = {name: batches.plan.inputs[name].shape if whole else batches.local_shape(name) for name in batches.names}
    tensors = {name: given.get(name) for name in batches.names}
    return all(isinstance(one, Tensor) and tuple(one.shape) == wanted[name] for name, one in tensors.items())


def smaller_for(plan: Plan, batches: Batches, given: Mapping[str, object], whole: bool) -> Plan | None:
    """The plan for so few samples as are given, if that is what is the matter with them."""
    name = next((name for name in batches.names if plan.inputs[name].shape[:1] == (plan.batch,)), None)
    tensor = given.get(name) if name is not None else None
    if name is None or not isinstance(tensor, Tensor) or not tensor.dim():
        return None
    rows = tensor.shape[0]
    sizes = [rows] if whole else sorted({rows, *(rows * parts for parts in range(1, _split(plan) + 1))})
    for size in sizes:
        found = smaller(plan, size)
        if found is not None and fits(Batches(found, batches.device), given, whole):
            return found
    _refuse_split(plan, name, tensor, whole)
    return None


def _refuse_split(plan: Plan, name: str, tensor: Tensor, whole: bool) -> None:
    alike = tuple(tensor.shape[1:]) == plan.inputs[name].shape[1:]
    if whole and alike and 0 < tensor.shape[0] < plan.batch and tensor.shape[0] % _split(plan):
        raise RunError(
            f"batch tensor {name!r} has shape {tuple(tensor.shape)}",
            f"a multiple of {_split(plan)} samples, over which the plan splits them, up to {plan.batch}",
            "leave the last batch out (drop_last=True), or give as many",
        )
