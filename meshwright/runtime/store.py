"""Stored parameters: DTensors in the plan's storage layout, gradients in the same; compute copies beside them."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from meshwright.capture.program import Program
from meshwright.layout import Layout
from meshwright.layout.convert import convert_gradient, convert_value
from meshwright.plan import Plan
from meshwright.price.flow import invariant


class Store:
    """One rank's share of the parameters, and what is gathered from it while a step runs."""

    def __init__(self, program: Program, plan: Plan, model: nn.Module, mesh: DeviceMesh, device: torch.device) -> None:
        self.plan, self.mesh = plan, plan.mesh
        self.shapes = {parameter.name: parameter.type.sizes for parameter in program.parameters}
        self.stored: dict[str, nn.Parameter] = {}
        self.copies: dict[str, Tensor] = {}
        self.gradients: dict[str, Tensor] = {}
        whole = invariant(plan.mesh)
        source = dict(model.named_parameters())
        for parameter in program.parameters:
            storage = Layout.parse(plan.parameters[parameter.name].storage)
            full = source[parameter.name].detach().to(device)
            local = convert_value(full, whole, storage, plan.mesh, shape=tuple(full.shape))
            # A copy in any case: the user's model is not trained behind their back.
            local = local.clone() if local.data_ptr() == full.data_ptr() else local
            tensor = DTensor.from_local(
                local, mesh, storage.placements(), run_check=False, shape=full.shape, stride=full.stride()
            )
            self.stored[parameter.name] = nn.Parameter(tensor, requires_grad=parameter.trainable)

    def compute(self, name: str) -> Tensor:
        """The parameter in its compute layout; it has been gathered if storage differs."""
        found = self.copies.get(name)
        return self._local(name) if found is None else found

    def gather(self, names: Iterable[str]) -> None:
        for name in names:
            storage, compute = self._layouts(name)
            if storage != compute and name not in self.copies:
                local = self._local(name)
                self.copies[name] = convert_value(local, storage, compute, self.mesh, shape=self.shapes[name])

    def free(self, names: Iterable[str]) -> None:
        for name in names:
            if self.plan.parameters[name].regather:
                self.copies.pop(name, None)

    def add_gradient(self, name: str, gradient: Tensor) -> None:
        found = self.gradients.get(name)
        self.gradients[name] = gradient if found is None else found + gradient

    def reduce(self, names: Iterable[str]) -> None:
        """Bring gradients from the compute to the storage layout and hand them to the stored parameters."""
        for name in names:
            gradient = self.gradients.pop(name, None)
            if gradient is None:
                continue
            storage, compute = self._layouts(name)
            local = convert_gradient(gradient, storage, compute, self.mesh, shape=self.shapes[name])
            stored = self.stored[name]
            old = stored.grad
            if isinstance(old, DTensor):
                local = local + old.to_local()
            assert isinstance(stored.data, DTensor)
            stored.grad = DTensor.from_local(
                local,
                stored.data.device_mesh,
                storage.placements(),
                run_check=False,
                shape=stored.shape,
                stride=stored.data.stride(),
            )

    def end_step(self) -> None:
        """Copies are refreshed at the next step: the optimizer changes what is stored."""
        self.copies.clear()
        self.gradients.clear()

    def _layouts(self, name: str) -> tuple[Layout, Layout]:
        entry = self.plan.parameters[name]
        return Layout.parse(entry.storage), Layout.parse(entry.compute)

    def _local(self, name: str) -> Tensor:
        data = self.stored[name].data
        assert isinstance(data, DTensor)
        return data.to_local()
