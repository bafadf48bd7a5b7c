"""The optimizer that was planned for: making it, and refusing one that keeps more state, for which there is no memory.

Only optimizers that hold a trainer's parameters are watched (`stepping` finds them); those of others are let alone.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import compress
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard

from meshwright.capture.optimizer import STATES
from meshwright.errors import RunError
from meshwright.runtime.weights.adoption import Cut
from meshwright.runtime.weights.hosted import in_groups
from meshwright.runtime.weights.in_pieces import InPieces, PiecesDict
from meshwright.runtime.weights.local_step import ELEMENTWISE, prepare, swap_in_shards, swap_out
from meshwright.runtime.weights.stage_state import OwnStage
from meshwright.runtime.weights.whole_step import keep_cut, shard_loaded_state

_PLANNED = "meshwright_optimizer"


def make_optimizer(name: str, parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.Optimizer:
    """Fused: one call for all parameters, and no tensors in between."""
    if name == "adamw":
        return torch.optim.AdamW(parameters, lr=lr, fused=True)
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9 if name == "momentum" else 0.0, fused=True)


def expect_optimizer(parameters: Mapping[str, nn.Parameter], planned: str, cuts: Mapping[str, Cut]) -> None:
    """A watched optimizer that keeps more state than planned on these parameters raises RunError when it steps."""
    for name, parameter in parameters.items():
        setattr(parameter, _PLANNED, planned)
        prepare(parameter)
        if name in cuts:
            keep_cut(parameter, cuts[name])


_STEPS: WeakKeyDictionary[torch.optim.Optimizer, int] = WeakKeyDictionary()
"""How many steps a watched optimizer has taken."""


_BEFORE: WeakKeyDictionary[torch.optim.Optimizer, Callable[[], None]] = WeakKeyDictionary()
"""What is called before a watched optimizer steps."""


def watch(optimizer: torch.optim.Optimizer, before: Callable[[], None] | None = None) -> None:
    """Hooks of this one optimizer, and of no other: its state is checked, and it steps on pieces where it can."""
    if before is not None:
        _BEFORE[optimizer] = before
    if optimizer not in _STEPS:
        _check_kind(optimizer)
        _STEPS[optimizer] = 0
        optimizer.register_step_pre_hook(_before)
        optimizer.register_step_post_hook(_after)
        if before is not None:
            optimizer.register_load_state_dict_pre_hook(OwnStage())
        if dist.is_initialized() and dist.get_world_size() > 1:
            optimizer.register_state_dict_post_hook(lambda _, state: PiecesDict(state, IN_PIECES))


IN_PIECES = InPieces(
    "an optimizer of a trainer",
    "call mw.save(trainer, optimizer, folder) on every rank, or use torch.distributed.checkpoint",
)


def steps_of(optimizer: torch.optim.Optimizer) -> int:
    return _STEPS.get(optimizer, 0)


def is_stored(parameter: Tensor) -> bool:
    """Whether some trainer stores it."""
    return hasattr(parameter, _PLANNED)


def optimizers_alive() -> list[torch.optim.Optimizer]:
    """Those of this process that the garbage collector knows."""
    kinds, waiting = set[type](), [torch.optim.Optimizer]
    while waiting:
        kind = waiting.pop()
        kinds.add(kind)
        waiting += [one for one in kind.__subclasses__() if one not in kinds]
    known = gc.get_objects()  # hundreds of thousands: looked at without a line of Python for each
    found: Iterator[torch.optim.Optimizer] = compress(known, map(kinds.__contains__, map(type, known)))
    return [one for one in found if "param_groups" in vars(one)]  # one may be under construction


def held(optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


def _before(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    """What its class tells: nothing has been allocated yet."""
    if in_groups(optimizer):
        return
    swap_out(optimizer)
    _check_kind(optimizer)
    if optimizer in _BEFORE:
        _BEFORE[optimizer]()
    shard_loaded_state(optimizer)
    for group in optimizer.param_groups:
        expected = _of_class(optimizer, group)
        if expected is None:
            continue
        for parameter in group["params"]:
            planned = getattr(parameter, _PLANNED, None)
            if planned is not None and expected > STATES[planned]:
                raise _refuse(optimizer, expected, planned)
    swap_in_shards(optimizer, args, kwargs)


def _check_kind(optimizer: torch.optim.Optimizer) -> None:
    """Refuses optimizers that cannot train what a trainer stores."""
    if isinstance(optimizer, torch.optim.SparseAdam):
        raise RunError(
            "SparseAdam on parameters of a trainer, whose gradients are dense, those of Embedding(sparse=True) too",
            "an optimizer of dense gradients",
            "use AdamW or SGD; SparseAdam leaves rows that no batch names alone, they decay their moments",
        )
    if isinstance(optimizer, torch.optim.LBFGS):
        _check_flat([one for one in held(optimizer) if is_stored(one)])


def _check_flat(stored: list[Tensor]) -> None:
    """LBFGS takes products over all parameters as one vector: each rank has to have all of them, in even pieces."""
    for parameter in stored:
        tensor = parameter.data
        if not isinstance(tensor, DTensor):
            continue
        if parameter.grad is None:
            raise RunError(
                f"LBFGS over a parameter of shape {tuple(tensor.shape)} that has no gradient",
                "parameters that the loss depends on",
                "make it over trainer.parameters()",
            )
        if tensor.device_mesh.size() != dist.get_world_size():
            raise RunError(
                "LBFGS on the parameters of a pipeline's stage", "all parameters on every rank", "plan with pp=1"
            )
        for axis, placement in enumerate(tensor.placements):
            if isinstance(placement, Shard) and tensor.shape[placement.dim] % tensor.device_mesh.size(axis):
                raise RunError(
                    f"LBFGS on a parameter of shape {tuple(tensor.shape)}, of which ranks store uneven pieces",
                    "pieces of one size: LBFGS makes one vector of all parameters",
                    "plan with zero=0 and without tp, or use another optimizer",
                )


def _after(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    """What it keeps: for a class that we do not know. A tensor of the parameter's size counts."""
    if in_groups(optimizer):
        return
    swap_out(optimizer)
    _STEPS[optimizer] = steps_of(optimizer) + 1
    if type(optimizer) in ELEMENTWISE:
        return
    for parameter, state in optimizer.state.items():
        planned = getattr(parameter, _PLANNED, None)
        if planned is None or not state or parameter.numel() < 2:
            continue
        kept = sum(isinstance(value, Tensor) and value.numel() == parameter.numel() for value in state.values())
        if kept > STATES[planned]:
            raise _refuse(optimizer, kept, planned)


def _of_class(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> int | None:
    """Tensors of state per parameter."""
    kind = type(optimizer)
    if kind is torch.optim.SGD:
        return 1 if group["momentum"] else 0
    if kind is torch.optim.RMSprop:
        return 1 + bool(group["momentum"]) + bool(group["centered"])
    if kind in (torch.optim.Adagrad, torch.optim.ASGD):
        return 1
    return 2 + bool(group.get("amsgrad")) if kind in ELEMENTWISE else None


def _refuse(optimizer: torch.optim.Optimizer, kept: int, planned: str) -> RunError:
    roomy = [name for name, count in STATES.items() if count >= kept]
    most = max(STATES.values())
    again = f"plan again with optimizer={roomy[-1]!r}" if roomy else f"no plan has room for more than {most}"
    return RunError(
        f"{type(optimizer).__name__} keeps {kept} tensors of state per parameter",
        f"at most {STATES[planned]}, as {planned} does, for which the memory was planned",
        f"use the optimizer that was planned; {again}",
    )
