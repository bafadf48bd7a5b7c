"""Optimizer state and weights in the host's memory: how they get to the device and back.

An optimizer's update runs on the device. The state of parameters that the plan offloads comes there in groups, one for
each segment: the next group's while one is updated, and what was updated goes back during the next (`simulate` plays
the same). Those that are on the device are updated first. On a GPU the host's memory is pinned and copies run on
streams of their own, one each way; on a CPU they are plain copies.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from meshwright.plan import Plan
from meshwright.torch_compat import dtensor_like, local_tensor

_HOSTED = "meshwright_hosted"


class HostMemory:
    """Memory of the host for one device's tensors."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.cuda = device, device.type == "cuda"
        self.up_stream = torch.cuda.Stream(device) if self.cuda else None  # type: ignore[no-untyped-call]
        self.down_stream = torch.cuda.Stream(device) if self.cuda else None  # type: ignore[no-untyped-call]

    def like(self, tensor: Tensor) -> Tensor:
        """Memory of the host for a tensor that lies as this one does."""
        return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, pin_memory=self.cuda)

    def put(self, tensor: Tensor, into: Tensor | None = None) -> Tensor:
        """To the host, on the stream that is current; `synchronize` before anybody reads it there."""
        found = self.like(tensor) if into is None else into
        return found.copy_(tensor, non_blocking=True)

    def fetch(self, tensor: Tensor) -> Tensor:
        """To the device, on the stream that is current."""
        found = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=self.device)
        return found.copy_(tensor, non_blocking=True)

    def holds(self, tensor: Tensor) -> bool:
        """Whether a tensor is on the host already."""
        return not (self.cuda and tensor.is_cuda)

    def synchronize(self) -> None:
        """Until the host's memory has all that was put there by now, on this stream and on the stream of its own."""
        if self.cuda:
            assert self.down_stream is not None
            self.down_stream.synchronize()
            torch.cuda.current_stream(self.device).synchronize()


@dataclass(frozen=True, slots=True)
class Hosted:
    """What of a parameter is on the host (`ParameterPlan.offload`), and the segment whose group it is updated with."""

    offload: str
    segment: int
    memory: HostMemory


def mark_hosted(
    parameters: Mapping[str, nn.Parameter], plan: Plan, first: Mapping[str, int], memory: HostMemory
) -> None:
    """From now on optimizers find what the plan offloads. first: the segment that reads a parameter first."""
    for name, parameter in parameters.items():
        offload = plan.parameters[name].offload
        if offload:
            setattr(parameter, _HOSTED, Hosted(offload, first[name], memory))


def hosted_of(parameter: object) -> Hosted | None:
    found = getattr(parameter, _HOSTED, None)
    return found if isinstance(found, Hosted) else None


def on_device(tensor: DTensor, device: torch.device) -> DTensor:
    """A DTensor whose piece is on the device that its mesh computes on: collectives need it there."""
    local = local_tensor(tensor)
    found: DTensor = tensor if local.device.type == device.type else dtensor_like(local.to(device), tensor)
    return found


_SCALARS = ("step", "eta", "mu", "mu_product", "RMS")
"""Keys of state that is one number, of a parameter without dims too."""


def is_state(key: str, value: object, piece: Tensor) -> bool:
    """Whether a value of an optimizer's state has an entry for each of the parameter's: counts and factors have not."""
    return isinstance(value, Tensor) and key not in _SCALARS and value.shape == piece.shape


State = defaultdict[Any, dict[str, Any]]


class GroupedStep:
    """One step of an optimizer over pieces, in groups. state: of every piece, on the host where the plan has it there.
    own: the optimizer's own step runs on what is given; hooks stand aside meanwhile."""

    def __init__(self, optimizer: torch.optim.Optimizer, state: State, hosted: Mapping[int, Hosted]) -> None:
        """hosted: by the identity of a piece."""
        self.optimizer, self.state, self.hosted = optimizer, state, hosted
        self.lists: list[list[Any]] = [list(group["params"]) for group in optimizer.param_groups]

    def run(self) -> None:
        groups: dict[int, list[Any]] = {}
        for piece in (piece for pieces in self.lists for piece in pieces):
            found = self.hosted.get(id(piece))
            if found is not None and piece.grad is not None:
                groups.setdefault(found.segment, []).append(piece)
        waiting = [_Group(self, groups[segment]) for segment in sorted(groups)]
        if waiting:
            waiting[0].fetch()
        self._step({id(one): one for pieces in self.lists for one in pieces if id(one) not in self.hosted}, self.state)
        for place, group in enumerate(waiting):
            if place + 1 < len(waiting):
                waiting[place + 1].fetch()
            group.update()
            if place:
                waiting[place - 1].release()
            group.put()
        if waiting:
            waiting[-1].release()
            waiting[-1].memory.synchronize()
        for own in self.optimizer.param_groups:
            own["params"] = []

    def _step(self, stand_ins: Mapping[int, Any], state: State) -> None:
        """stand_ins: what is updated, by the identity of the piece that it stands for."""
        before, self.optimizer.state = self.optimizer.state, state
        try:
            for group, pieces in zip(self.optimizer.param_groups, self.lists, strict=True):
                group["params"] = [stand_ins[id(one)] for one in pieces if id(one) in stand_ins]
            if stand_ins:
                with standing_aside(self.optimizer):
                    type(self.optimizer).step(self.optimizer)
        finally:
            self.optimizer.state = before


class _Group:
    """Pieces that are updated at once. On the device from `fetch` to `release`."""

    def __init__(self, of: GroupedStep, pieces: Iterable[Any]) -> None:
        self.of, self.pieces = of, list(pieces)
        self.memory = of.hosted[id(self.pieces[0])].memory
        self.stand_ins: dict[int, Any] = {}
        self.state: State = defaultdict(dict)
        self.came: torch.cuda.Event | None = None
        self.left: torch.cuda.Event | None = None

    def fetch(self) -> None:
        with _Side(self.memory, self.memory.up_stream) as side:
            for piece in self.pieces:
                self.stand_ins[id(piece)] = stand_in = self._stand_in(piece)
                held = self.of.state.get(piece, {})
                self.state[stand_in] = {
                    key: self.memory.fetch(value) if is_state(key, value, piece) else value
                    for key, value in held.items()
                }
        self.came = side.event

    def _stand_in(self, piece: Any) -> Any:
        """The piece itself where the weight is on the device; else a copy of it there, with its gradient."""
        if self.of.hosted[id(piece)].offload != "weight":
            return piece
        found = nn.Parameter(self.memory.fetch(piece.detach()), requires_grad=False)
        found.grad = self.memory.fetch(piece.grad)
        return found

    def update(self) -> None:
        _wait(self.memory, self.came)
        state: State = defaultdict(dict, {one: held for one, held in self.state.items() if held})
        self.of._step(self.stand_ins, state)
        self.state = state

    def put(self) -> None:
        with _Side(self.memory, self.memory.down_stream) as side:
            for piece in self.pieces:
                stand_in, held = self.stand_ins[id(piece)], self.of.state.get(piece, {})
                self.of.state[piece] = {
                    key: self.memory.put(value, held.get(key)) if is_state(key, value, piece) else value
                    for key, value in self.state[stand_in].items()
                }
                if stand_in is not piece:
                    self.memory.put(stand_in.detach(), piece.detach())
        self.left = side.event

    def release(self) -> None:
        """Nothing that runs from now on may use their memory before they are back on the host."""
        _wait(self.memory, self.left)
        self.stand_ins.clear()
        self.state.clear()


class _Side:
    """Inside, a stream of copies is current; it sees all that was asked for before. On a CPU there is none."""

    def __init__(self, memory: HostMemory, stream: torch.cuda.Stream | None) -> None:
        self.memory, self.stream = memory, stream
        self.event: torch.cuda.Event | None = None
        self._inside: Any = None

    def __enter__(self) -> _Side:
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream(self.memory.device))
            self._inside = torch.cuda.stream(self.stream)
            self._inside.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        if self.stream is not None:
            self.event = self.stream.record_event()
            self._inside.__exit__(*error)


def _wait(memory: HostMemory, event: torch.cuda.Event | None) -> None:
    if event is not None:
        torch.cuda.current_stream(memory.device).wait_event(event)


_ASIDE: set[int] = set()
"""Optimizers, by identity, whose step runs in groups now."""


@contextmanager
def standing_aside(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Inside, hooks of ours do nothing: a part of its step runs."""
    _ASIDE.add(id(optimizer))
    try:
        yield
    finally:
        _ASIDE.discard(id(optimizer))


def in_groups(optimizer: torch.optim.Optimizer) -> bool:
    """Whether hooks are called for a part of a step."""
    return id(optimizer) in _ASIDE
