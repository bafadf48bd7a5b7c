"""The trainer: a model, parallelized by a plan, that the user's own optimizer and loop drive."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import HashStore  # type: ignore[attr-defined]
from torch.distributed.device_mesh import init_device_mesh

from meshwright.capture import Batch, Precision, capture
from meshwright.capture.counter import RandomState
from meshwright.capture.program import Program
from meshwright.errors import RunError
from meshwright.generate.program import generate
from meshwright.layout.transport import use_transport
from meshwright.plan import Plan
from meshwright.price.check import check_plan
from meshwright.runtime.batches import Batches, Index
from meshwright.runtime.interpreter import Interpreter
from meshwright.runtime.optimizers import expect_optimizer
from meshwright.runtime.peers import check_peers
from meshwright.runtime.sources import Weights, weights_of
from meshwright.runtime.store import Store
from meshwright.runtime.watch import Watch, WatchedTransport, default_timeout_s
from meshwright.schedule import plan_instructions
from meshwright.torch_compat import fake_mode, fake_tensor


@dataclass(frozen=True, slots=True)
class Settings:
    """What a run may be told: the seed of its random numbers, whether to compare peers' data, how long to wait, whether
    segments are compiled."""

    seed: int = 0
    debug: bool = False
    timeout_s: float = 0.0
    compiled: bool = False


class Trainer:
    """`step` runs forward and backward of one global batch; gradients are then on `parameters()`.

    Parameters are DTensors in the plan's storage layout, so torch.optim, clipping and checkpoints work on them.
    """

    def __init__(
        self, weights: Weights, plan: Plan, program: Program, device: torch.device, settings: Settings
    ) -> None:
        self.plan, self.program, self.device = plan, program, device
        self.seed, self.debug, self.steps = settings.seed, settings.debug, 0
        self.mesh = init_device_mesh(device.type, plan.mesh.sizes, mesh_dim_names=plan.mesh.names)
        self.watch = Watch(settings.timeout_s)
        self.transport = WatchedTransport.from_mesh(self.mesh).watched_by(self.watch)
        self.coordinates = tuple(self.transport.index(name) for name in plan.mesh.names)
        self.instructions = plan_instructions(plan, program)
        self._batches = Batches(plan, self.coordinates, device)
        beside = None
        if device.type == "cpu" and plan.world_size > 1:
            beside = WatchedTransport.beside(self.mesh.mesh, plan.mesh.names).watched_by(self.watch)
        store = Store(program, plan, weights.source(plan.mesh.sizes, self.coordinates), self.mesh, beside)
        used = {name for parameter in program.parameters for name in (parameter.name, *parameter.aliases)}
        named = weights.model.named_parameters(remove_duplicate=False)
        self._unused = {name: weights.whole(name) for name, _ in named if name not in used}
        self._interpreter = Interpreter(
            program,
            generate(program, plan, device.type, settings.compiled),
            store,
            _buffers(weights, program, device),
            device,
            self.watch.at,
        )
        expect_optimizer(self.parameters(), plan.optimizer)

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

    def data_slice(self) -> dict[str, Index]:
        """Which part of each tensor of the global batch this rank reads: `tensor[index]`.

        With micro-batches a rank reads a part of each, and its rows may be no single run; they are then listed.
        """
        return {name: self._batches.index(name) for name in self.plan.inputs}

    def step(self, batch: Batch, *, global_batch: bool = False) -> Tensor:
        """Forward and backward; returns the loss of the global batch. `batch`: this rank's slice, or the whole."""
        parts = self._parts(batch, global_batch)
        with use_transport(self.transport), torch.no_grad(), self.watch.during(f"step {self.steps}"):
            random = RandomState(self.seed, self.steps)
            loss = self._interpreter.run(self.instructions, parts, random)
        self.steps += 1
        return loss

    def evaluate(self, batch: Batch, *, global_batch: bool = False) -> Tensor:
        """The loss of a batch as the model in eval mode has it; changes nothing."""
        parts = self._parts(batch, global_batch)
        with use_transport(self.transport), torch.no_grad(), self.watch.during("evaluate"):
            return self._interpreter.evaluate(parts)

    def _parts(self, batch: object, whole: bool) -> list[dict[str, Tensor]]:
        parts = self._batches.split(batch, whole)
        if self.debug:
            check_peers(parts, self.data_slice())
        return parts


def _buffers(weights: Weights, program: Program, device: torch.device) -> dict[str, Tensor]:
    """In the dtypes that the step computes in."""
    dtypes = {name: buffer.type.dtype for buffer in program.buffers for name in (buffer.name, *buffer.aliases)}
    found = {}
    for name, tensor in weights.model.named_buffers():
        dtype = getattr(torch, dtypes[name]) if name in dtypes else tensor.dtype
        found[name] = weights.whole(name).to(device, dtype)
    return found


def parallelize(
    model: nn.Module | Callable[[], nn.Module],
    plan: Plan,
    loss: Callable[..., Tensor] | None = None,
    *,
    weights: str | os.PathLike[str] | None = None,
    seed: int = 0,
    debug: bool | None = None,
    timeout_s: float | None = None,
    compile: bool = False,
) -> Trainer:
    """The model under the plan, on this process's share of it. Call it on every rank, under torchrun.

    model: one with weights; or a function that builds one, whose weights are then made one at a time, from `seed`,
    and never all on one rank; or one on the meta device, with `weights`. weights: safetensors, a file or a folder, of
    which each rank reads its part. debug: compare what ranks read that should read the same (also MESHWRIGHT_DEBUG=1).
    timeout_s: how long a rank waits for others before it names those that are late and ends (600). compile: each
    distinct segment by inductor.
    """
    _check_world(plan)
    device = torch.device("cpu")
    if _on_cuda():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        torch.cuda.set_device(device)
    found = weights_of(model, weights, seed, device)
    mode = fake_mode()
    batch = {name: fake_tensor(entry.shape, getattr(torch, entry.dtype), mode) for name, entry in plan.inputs.items()}
    program = capture(found.model, batch, loss, precision=cast(Precision, plan.precision))
    check_plan(plan, program)
    wanted = os.environ.get("MESHWRIGHT_DEBUG", "") not in ("", "0") if debug is None else debug
    wait_s = default_timeout_s() if timeout_s is None else timeout_s
    return Trainer(found, plan, program, device, Settings(seed, wanted, wait_s, compile))


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
