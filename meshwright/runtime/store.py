"""Stored parameters: DTensors in the plan's storage layout and dtype, gradients in the same; compute copies beside."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from meshwright.capture.program import Parameter, Program
from meshwright.layout import Layout
from meshwright.layout.convert import convert_gradient, convert_value
from meshwright.plan import Plan

Source = Callable[[Parameter, Layout, torch.dtype], Tensor]
"""This rank's piece of a parameter, in its storage layout and dtype, in memory of its own."""


class Store:
    """One rank's share of the parameters, and what is gathered from it while a step runs."""

    def __init__(self, program: Program, plan: Plan, source: Source, mesh: DeviceMesh) -> None:
        self.plan, self.mesh = plan, plan.mesh
        self.shapes = {parameter.name: parameter.type.sizes for parameter in program.parameters}
        self.dtypes = {parameter.name: getattr(torch, parameter.type.dtype) for parameter in program.parameters}
        self.wide = {name: getattr(torch, entry.dtype) for name, entry in plan.parameters.items()}
        self.layouts = {
            name: (Layout.parse(entry.storage), Layout.parse(entry.compute)) for name, entry in plan.parameters.items()
        }
        self.stored: dict[str, nn.Parameter] = {}
        self.locals: dict[str, Tensor] = {}
        self.copies: dict[str, Tensor] = {}
        self.gradients: dict[str, Tensor] = {}
        self.summed: set[str] = set()
        for parameter in program.parameters:
            storage = self.layouts[parameter.name][0]
            local = source(parameter, storage, self.wide[parameter.name])
            tensor = as_dtensor(local, mesh, storage, self.shapes[parameter.name])
            self.stored[parameter.name] = nn.Parameter(tensor, requires_grad=parameter.trainable)
            self.locals[parameter.name] = local

    def compute(self, name: str) -> Tensor:
        """The parameter in its compute layout and dtype; it has been gathered if storage differs."""
        found = self.copies.get(name)
        return self.locals[name] if found is None else found

    def gather(self, names: Iterable[str]) -> None:
        for name in names:
            storage, compute = self.layouts[name]
            if name not in self.copies and (storage != compute or self.wide[name] != self.dtypes[name]):
                # Cast first: fewer bytes travel.
                local = self.locals[name].to(self.dtypes[name])
                self.copies[name] = convert_value(local, storage, compute, self.mesh, shape=self.shapes[name])

    def free(self, names: Iterable[str]) -> None:
        for name in names:
            if self.plan.parameters[name].regather:
                self.copies.pop(name, None)

    def add_gradient(self, name: str, gradient: Tensor) -> None:
        """Sums in the compute layout and the storage dtype."""
        found = self.gradients.get(name)
        if found is None:
            self.gradients[name] = gradient
        elif name in self.summed:
            found.add_(gradient)
        else:
            self.gradients[name] = found.to(self.wide[name]) + gradient
            self.summed.add(name)

    def scatter(self, name: str) -> None:
        """Where the plan says so, a micro-batch's gradient goes to the storage layout at once."""
        if self.plan.parameters[name].scatter and self.plan.microbatches > 1:
            self.reduce((name,))

    def reduce(self, names: Iterable[str]) -> None:
        """Bring gradients from the compute to the storage layout and hand them to the stored parameters."""
        for name in names:
            gradient = self.gradients.pop(name, None)
            if gradient is None:
                continue
            self.summed.discard(name)
            storage, compute = self.layouts[name]
            wide = gradient.to(self.wide[name])
            local = convert_gradient(wide, storage, compute, self.mesh, shape=self.shapes[name])
            self._hand_over(name, _dense(local))

    def _hand_over(self, name: str, local: Tensor) -> None:
        stored = self.stored[name]
        old = stored.grad
        if isinstance(old, DTensor):
            old.to_local().add_(local)
            return
        assert isinstance(stored.data, DTensor)
        stored.grad = as_dtensor(local, stored.data.device_mesh, self.layouts[name][0], self.shapes[name])

    def end_step(self) -> None:
        """Copies are refreshed at the next step: the optimizer changes what is stored."""
        self.copies.clear()
        self.gradients.clear()
        self.summed.clear()


def as_dtensor(local: Tensor, mesh: DeviceMesh, layout: Layout, shape: tuple[int, ...]) -> DTensor:
    """This rank's piece of a tensor of this global shape, as the DTensor that optimizers and checkpoints know."""
    strides = [1]
    for length in reversed(shape[1:]):
        strides.insert(0, strides[0] * max(1, length))
    return DTensor.from_local(
        local, mesh, layout.placements(), run_check=False, shape=torch.Size(shape), stride=tuple(strides[: len(shape)])
    )


def _dense(tensor: Tensor) -> Tensor:
    """In memory of its own: clipping and optimizers write to gradients."""
    return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()
