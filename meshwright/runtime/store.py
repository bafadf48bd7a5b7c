"""Stored parameters: DTensors in the plan's storage layout and dtype, gradients in the same; compute copies beside."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from meshwright.capture.program import Parameter, Program
from meshwright.layout import Layout
from meshwright.layout.convert import convert_gradient, convert_value
from meshwright.layout.transport import Transport
from meshwright.plan import Plan, Stage
from meshwright.price.buckets import Transfers, gathered, reduced
from meshwright.runtime.buckets import move
from meshwright.runtime.overlap import Overlap

Source = Callable[[Parameter, Layout, torch.dtype], Tensor]
"""This rank's piece of a parameter, in its storage layout and dtype, in memory of its own."""


class Store:
    """One rank's share of the parameters that live on a stage, and what is gathered from it while a step runs.

    guests: parameters of other stages that this one reads; their copies are put here, and their gradients fetched.
    """

    def __init__(
        self,
        program: Program,
        plan: Plan,
        source: Source,
        mesh: DeviceMesh,
        beside: Transport | None = None,
        stage: Stage | None = None,
        thread: ThreadPoolExecutor | None = None,
    ) -> None:
        """beside: what carries reductions while backward goes on; without it, it waits for them. stage: the only one
        unless given. thread: that of all stages that this rank runs."""
        here = plan.stages[0] if stage is None else stage
        self.plan, self.mesh, self.guests = plan, here.mesh, here.guests
        own = [parameter for parameter in program.parameters if plan.home(program, parameter.name) is here]
        self.shapes = {parameter.name: parameter.type.sizes for parameter in program.parameters}
        self.dtypes = {parameter.name: getattr(torch, parameter.type.dtype) for parameter in program.parameters}
        self.wide = {name: getattr(torch, entry.dtype) for name, entry in plan.parameters.items()}
        self.layouts = {
            parameter.name: (Layout.parse(entry.storage), Layout.parse(entry.compute))
            for parameter in own
            for entry in (plan.parameters[parameter.name],)
        }
        self.stored: dict[str, nn.Parameter] = {}
        self.locals: dict[str, Tensor] = {}
        self.copies: dict[str, Tensor] = {}
        self.gradients: dict[str, Tensor] = {}
        self.summed: set[str] = set()
        self.overlap: Overlap[dict[str, Tensor]] = Overlap(beside, thread)
        self.gathers = {n: [gathered(plan, program, n, again=flag) for flag in (False, True)] for n in here.segments}
        self.reductions = {
            n: [reduced(plan, program, n, scatter=flag) for flag in (False, True)] for n in here.segments
        }
        for parameter in own:
            storage = self.layouts[parameter.name][0]
            local = source(parameter, storage, self.wide[parameter.name])
            tensor = as_dtensor(local, mesh, storage, self.shapes[parameter.name])
            self.stored[parameter.name] = nn.Parameter(tensor, requires_grad=parameter.trainable)
            self.locals[parameter.name] = local

    def compute(self, name: str) -> Tensor:
        """The parameter in its compute layout and dtype; it has been gathered if storage differs."""
        found = self.copies.get(name)
        return self.locals[name] if found is None else found

    def gather(self, segment: int) -> None:
        """What the segment computes with and storage has otherwise. Cast first: fewer bytes travel."""
        for transfers in self.gathers[segment]:
            for bucket in transfers.buckets:
                if any(name not in self.copies for name in bucket.names):
                    cast = {name: self.locals[name].to(self.dtypes[name]) for name in bucket.names}
                    self.copies.update(move(bucket, cast))
            for name in transfers.alone:
                storage, compute = self.layouts[name]
                if name not in self.copies and (storage != compute or self.wide[name] != self.dtypes[name]):
                    local = self.locals[name].to(self.dtypes[name])
                    self.copies[name] = convert_value(local, storage, compute, self.mesh, shape=self.shapes[name])

    def free(self, names: Iterable[str]) -> None:
        for name in names:
            if self.plan.parameters[name].regather and name not in self.guests:
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

    def scatter(self, segment: int) -> None:
        """Where the plan says so, a micro-batch's gradients go to the storage layout at once."""
        if self.plan.microbatches > 1:
            self._reduce(self.reductions[segment][True])

    def reduce(self, segment: int) -> None:
        """Begin to bring gradients of the segment's own parameters from the compute to the storage layout."""
        for transfers in self.reductions[segment]:
            self._reduce(transfers)

    def _reduce(self, transfers: Transfers) -> None:
        names = [name for bucket in transfers.buckets for name in bucket.names] + list(transfers.alone)
        given = {name: self.gradients.pop(name) for name in names if name in self.gradients}
        self.summed -= given.keys()
        if given:
            self.overlap.start(lambda: self._moved(transfers, given))
            self._hand_over(self.overlap.finished(wait=False))

    def _moved(self, transfers: Transfers, given: dict[str, Tensor]) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        wide = {name: gradient.to(self.wide[name]) for name, gradient in given.items()}
        for bucket in transfers.buckets:
            if all(name in wide for name in bucket.names):
                found.update(move(bucket, {name: wide.pop(name) for name in bucket.names}))
        for name, gradient in wide.items():
            storage, compute = self.layouts[name]
            local = convert_gradient(gradient, storage, compute, self.mesh, shape=self.shapes[name])
            found[name] = local if local.untyped_storage().nbytes() == local.nbytes else local.clone()
        return found

    def guest_gradient(self, name: str) -> Tensor | None:
        """What this stage's segments have summed for a guest, in its compute layout and the storage dtype."""
        self.summed.discard(name)
        found = self.gradients.pop(name, None)
        return None if found is None else found.to(self.wide[name])

    def add_stored(self, gradients: dict[str, Tensor]) -> None:
        """Gradients that come in the storage layout, from stages that had these parameters as guests."""
        self._hand_over([gradients])

    def wait(self) -> None:
        """Until every reduction that was begun is over."""
        self._hand_over(self.overlap.finished(wait=True))

    def _hand_over(self, done: list[dict[str, Tensor]]) -> None:
        """Reduced gradients become those of the stored parameters, or are added to them."""
        for name, local in (item for found in done for item in found.items()):
            stored = self.stored[name]
            old = stored.grad
            if isinstance(old, DTensor):
                old.to_local().add_(local)
            else:
                assert isinstance(stored.data, DTensor)
                stored.grad = as_dtensor(local, stored.data.device_mesh, self.layouts[name][0], self.shapes[name])

    def reduced_gradients(self) -> list[Tensor]:
        """This rank's pieces of those that are in their storage layout by now."""
        found = [entry.grad for entry in self.stored.values()]
        return [gradient.to_local() for gradient in found if isinstance(gradient, DTensor)]

    def end_step(self) -> None:
        """Wait for reductions. Copies are refreshed at the next step: the optimizer changes what is stored."""
        self._hand_over(self.overlap.finished(wait=True))
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
