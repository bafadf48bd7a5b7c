"""The trainer: a model, parallelized by a plan, that the user's own optimizer and loop drive."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import HashStore  # type: ignore[attr-defined]
from torch.distributed.device_mesh import init_device_mesh

from meshwright.capture import Batch, capture
from meshwright.capture.program import Program
from meshwright.errors import RunError
from meshwright.generate.program import generate
from meshwright.layout import Layout
from meshwright.layout.convert import convert_value
from meshwright.layout.transport import ProcessTransport, use_transport
from meshwright.plan import Plan
from meshwright.price.check import check_plan
from meshwright.price.flow import invariant
from meshwright.runtime.interpreter import Interpreter
from meshwright.runtime.store import Store
from meshwright.schedule import plan_instructions
from meshwright.torch_compat import fake_mode, fake_tensor


class Trainer:
    """`step` runs forward and backward of one global batch; gradients are then on `parameters()`.

    Parameters are DTensors in the plan's storage layout, so torch.optim, clipping and checkpoints work on them.
    """

    def __init__(self, model: nn.Module, plan: Plan, program: Program, device: torch.device) -> None:
        self.plan, self.program, self.device = plan, program, device
        mesh = init_device_mesh(device.type, plan.mesh.sizes, mesh_dim_names=plan.mesh.names)
        self.transport = ProcessTransport.from_mesh(mesh)
        self.instructions = plan_instructions(plan, program)
        self._names = list(plan.inputs)
        with use_transport(self.transport), torch.no_grad():
            store = Store(program, plan, model, mesh, device)
            buffers = {name: tensor.detach().to(device).clone() for name, tensor in model.named_buffers()}
        used = {name for parameter in program.parameters for name in (parameter.name, *parameter.aliases)}
        named = model.named_parameters(remove_duplicate=False)
        self._unused = {name: tensor.detach().clone() for name, tensor in named if name not in used}
        self._interpreter = Interpreter(program, generate(program, plan, device.type), store, buffers, device)

    def parameters(self) -> Iterator[nn.Parameter]:
        return iter(self._interpreter.store.stored.values())

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        return iter(self._interpreter.store.stored.items())

    def state_dict(self) -> dict[str, Tensor]:
        """Parameters (DTensors) and buffers under the model's own names, tied ones under each of theirs.

        Parameters that the loss does not depend on are there too, as plain tensors: they are not trained.
        """
        found: dict[str, Tensor] = {}
        stored = self._interpreter.store.stored
        for parameter in self.program.parameters:
            for name in (parameter.name, *parameter.aliases):
                found[name] = stored[parameter.name].data
        return found | dict(self._interpreter.buffers) | self._unused

    def data_slice(self) -> dict[str, tuple[slice, ...]]:
        """Which part of each tensor of the global batch this rank reads."""
        return {name: self._slice(name) for name in self._names}

    def step(self, batch: Batch, *, global_batch: bool = False) -> Tensor:
        """Forward and backward; returns the loss of the global batch. `batch`: this rank's slice, or the whole."""
        with use_transport(self.transport), torch.no_grad():
            return self._interpreter.run(self.instructions, self._local_batch(batch, global_batch))

    def _local_batch(self, batch: object, global_batch: bool) -> dict[str, Tensor]:
        names = ", ".join(self._names)
        if isinstance(batch, Mapping):
            given = dict(batch)
        elif isinstance(batch, tuple | list) and len(batch) == len(self._names):
            given = dict(zip(self._names, batch, strict=True))
        else:
            size = f" of {len(batch)}" if isinstance(batch, tuple | list) else ""
            raise RunError(f"a batch that is a {type(batch).__name__}{size}", f"a tuple or dict of {names}")
        if set(given) != set(self._names):
            raise RunError(f"a batch of {', '.join(map(str, given)) or 'nothing'}", names)
        return {name: self._local_input(name, tensor, global_batch) for name, tensor in given.items()}

    def _local_input(self, name: str, tensor: object, global_batch: bool) -> Tensor:
        entry = self.plan.inputs[name]
        layout, mesh = Layout.parse(entry.layout), self.plan.mesh
        if not isinstance(tensor, Tensor) or str(tensor.dtype) != f"torch.{entry.dtype}":
            kind = str(tensor.dtype) if isinstance(tensor, Tensor) else type(tensor).__name__
            raise RunError(f"batch entry {name!r} is {kind}", f"a tensor of torch.{entry.dtype}", "convert it")
        tensor = tensor.to(self.device)
        expected = entry.shape if global_batch else layout.local_shape(entry.shape, mesh.sizes)
        if tuple(tensor.shape) != expected:
            kind = "the whole batch" if global_batch else f"this rank's slice (layout {layout})"
            raise RunError(
                f"batch tensor {name!r} has shape {tuple(tensor.shape)}",
                f"{expected}, {kind} of the planned {entry.shape}",
                "pass global_batch=True with the whole batch, use `trainer.data_slice()`, or plan again",
            )
        if not global_batch:
            return tensor
        return convert_value(tensor, invariant(mesh), layout, mesh, shape=entry.shape, grad=False)

    def _slice(self, name: str) -> tuple[slice, ...]:
        entry = self.plan.inputs[name]
        layout, mesh = Layout.parse(entry.layout), self.plan.mesh
        found = []
        for dim, length in enumerate(entry.shape):
            start = 0
            for axis in layout.sharding(dim):
                length //= mesh.sizes[axis]
                start += self.transport.index(mesh.names[axis]) * length
            found.append(slice(start, start + length))
        return tuple(found)


def parallelize(model: nn.Module, plan: Plan, loss: Callable[..., Tensor] | None = None) -> Trainer:
    """The model under the plan, on this process's share of it. Call it on every rank, under torchrun."""
    _check_world(plan)
    if any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers())):
        raise RunError(
            "a model on the meta device, which has no weights",
            "a model with weights",
            "build it outside torch.device('meta')",
        )
    device = torch.device("cpu")
    if _on_cuda():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        torch.cuda.set_device(device)
    mode = fake_mode()
    batch = {name: fake_tensor(entry.shape, getattr(torch, entry.dtype), mode) for name, entry in plan.inputs.items()}
    program = capture(model, batch, loss)
    check_plan(plan, program)
    return Trainer(model, plan, program, device)


def _on_cuda() -> bool:
    return torch.cuda.is_available() and dist.get_backend() != "gloo"


def _check_world(plan: Plan) -> None:
    if not dist.is_initialized():
        backend = "nccl" if torch.cuda.is_available() else "gloo"
        if "RANK" in os.environ:
            dist.init_process_group(backend)
        else:
            dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
    world = dist.get_world_size()
    if world != plan.world_size:
        raise RunError(
            f"{world} processes are running",
            f"{plan.world_size}, the plan's world size",
            f"launch {plan.world_size} processes (torchrun --nproc-per-node {plan.world_size}), or plan for {world}",
        )
