"""Checkpoints through torch.distributed.checkpoint: saved under one plan, loaded under any other.

`folder` says how they lie on the disk, `sums` how damage is noticed.
"""

from __future__ import annotations

import base64
import json
import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load as read_tensors
from torch.distributed.checkpoint.state_dict_saver import save as write_tensors
from torch.distributed.checkpoint.storage import WriteResult
from torch.distributed.tensor import DTensor, zeros

from meshwright.errors import RunError, counted
from meshwright.runtime.state.folder import (
    FORMAT,
    Folder,
    begin,
    complete,
    complete_ones,
    mark_damaged,
    on_first,
    read_metadata,
    read_summary,
    together,
)
from meshwright.runtime.state.index import write_index
from meshwright.runtime.state.lock import release
from meshwright.runtime.state.sums import DamagedError, SummedReader, SummedWriter, agreed
from meshwright.runtime.trainer import Trainer
from meshwright.runtime.weights.hosted import hosted_of
from meshwright.torch_compat import dtensor_like, local_tensor

LOGGER = logging.getLogger("meshwright.checkpoint")


class IndexedWriter(SummedWriter):
    """DCP's writer; besides its own index it writes ours."""

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        super().finish(metadata, results)
        write_index(Path(self.path), metadata, results)


class Stateful(Protocol):
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any], /) -> None: ...


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a loaded checkpoint says of itself. extra: what the user gave to `save`. passed_over: what was wrong with
    newer ones, one line each."""

    path: Path
    step: int
    extra: dict[str, Any] = field(default_factory=dict)
    passed_over: tuple[str, ...] = ()


def save(
    trainer: Trainer,
    optimizer: torch.optim.Optimizer,
    folder: Folder,
    *,
    loader: Stateful | None = None,
    extra: Mapping[str, Any] | None = None,
    keep: int | None = None,
) -> Path:
    """Write everything that the run needs to go on; call it on every rank. Returns where.

    loader: its position is kept. extra: numbers and texts of one's own. keep: remove all but the newest so many.
    """
    root, name = Path(folder), f"step-{trainer.steps:06d}"
    scratch, begun_s = root / f".saving-{name}", time.perf_counter()
    with trainer.watch.during("save"):
        on_first(lambda: begin(root, scratch), f"{root} cannot be written")
        tensors = _model_tensors(trainer) | _optimizer_tensors(trainer, optimizer)
        writer = IndexedWriter(scratch)
        agreed(lambda: write_tensors(tensors, storage_writer=writer), f"{root} to have room and be written")
        trainer.watch.at("save: the summary")
        summary = _summary(trainer, optimizer, loader, extra or {})
        on_first(lambda: complete(scratch, root / name, summary, keep), f"{root / name} cannot be written")
        release(root)
    LOGGER.info("step %d saved in %s, in %.2f s", trainer.steps, root / name, time.perf_counter() - begun_s)
    return root / name


def _summary(
    trainer: Trainer, optimizer: torch.optim.Optimizer, loader: Stateful | None, extra: Mapping[str, Any]
) -> dict[str, Any]:
    """What a checkpoint says of itself."""
    return {
        "step": trainer.steps,
        "seed": trainer.seed,
        "model": trainer.plan.model,
        "batch": trainer.plan.batch,
        "world_size": trainer.plan.world_size,
        "parameters": {parameter.name: list(parameter.type.sizes) for parameter in trainer.program.parameters},
        "optimizer": type(optimizer).__name__,
        "groups": _all_groups(trainer, optimizer),
        "numbers": [row for rows in _of_stages(trainer, _optimizer_numbers(trainer, optimizer)) for row in rows],
        "random": base64.b64encode(bytes(torch.get_rng_state().tolist())).decode(),
        "loader": loader.state_dict() if loader is not None else None,
        "extra": _plain(extra),
        "loss_scale": trainer.loss_scale.state_dict() if trainer.loss_scale is not None else None,
    }


def load(
    trainer: Trainer,
    optimizer: torch.optim.Optimizer | None,
    folder: Folder,
    *,
    loader: Stateful | None = None,
    skip_damaged: bool = False,
    trust: bool = False,
) -> Checkpoint:
    """Bring trainer, optimizer, random numbers and loader to where they were saved; call it on every rank.

    folder: where checkpoints are, of which the newest complete one is taken, or one checkpoint. Where what is to be
    read does not have the checksums that were saved it is refused, or, with skip_damaged, the next older one is taken.
    trust: read one that has a pickle for its index, as older versions wrote, and that may run anything.
    """
    every = together(lambda: complete_ones(folder))
    passed: list[str] = []
    for number, path in enumerate(every):
        try:
            return replace(_load(trainer, optimizer, path, loader, trust), passed_over=tuple(passed))
        except DamagedError as error:
            others = every[number + 1 :]
            if others and skip_damaged:
                passed.append(error.given)
                mark_damaged(path)
                LOGGER.warning("passed over: %s", error.given)
                continue
            if passed:
                given = f"none of the {len(every)} checkpoints is whole: {error.given}; {'; '.join(passed)}"
                todo = "restore one, or start anew in another folder"
                raise DamagedError(given, "one that is as it was saved", todo) from error
            todo = f"load {others[0]}, or pass skip_damaged=True" if others else "start anew: there is no other one"
            raise DamagedError(error.given, error.expected, todo) from error
    raise AssertionError("complete_ones gives at least one")


def _load(
    trainer: Trainer, optimizer: torch.optim.Optimizer | None, path: Path, loader: Stateful | None, trust: bool
) -> Checkpoint:
    summary = together(lambda: read_summary(path, trust))
    _check_model(trainer, summary, path)
    stored = together(lambda: read_metadata(path, summary))
    tensors = _model_tensors(trainer)
    missing = [key for key in tensors if key not in stored.state_dict_metadata]
    if missing:
        raise RunError(f"{path} has no {missing[0].partition('/')[2]}", "every tensor of the model", "use another one")
    states = {} if optimizer is None else _empty_states(trainer, optimizer, stored)
    wanted = tensors | {f"optimizer/{name}/{key}": tensor for (name, key), tensor in states.items()}
    reader = SummedReader(path, stored, summed=summary["format"] == FORMAT)
    with trainer.watch.during("load"):
        agreed(lambda: read_tensors(wanted, storage_reader=reader), "files that can be read")
    if optimizer is not None:
        _restore(trainer, optimizer, states, summary)
    trainer.steps, trainer.seed = summary["step"], summary["seed"]
    if trainer.loss_scale is not None and summary.get("loss_scale"):
        trainer.loss_scale.load_state_dict(summary["loss_scale"])
    _set_random(path, base64.b64decode(summary["random"]))
    if loader is not None and summary["loader"] is not None:
        loader.load_state_dict(summary["loader"])
    saved_by, own = counted(summary["world_size"], "rank"), trainer.plan.world_size
    LOGGER.info("going on from %s, step %d, saved by %s, on %d", path, summary["step"], saved_by, own)
    return Checkpoint(path, summary["step"], summary["extra"])


def _set_random(path: Path, state: bytes) -> None:
    try:
        torch.set_rng_state(torch.tensor(list(state), dtype=torch.uint8))
    except RuntimeError as error:
        raise DamagedError(f"{path}: its random numbers: {error}", "what was saved", "use another one") from error


def _check_model(trainer: Trainer, summary: dict[str, Any], path: Path) -> None:
    given = {name: tuple(shape) for name, shape in summary["parameters"].items()}
    own = {parameter.name: parameter.type.sizes for parameter in trainer.program.parameters}
    for name in (*own, *given):
        if given.get(name) != own.get(name):
            raise RunError(
                f"{path} is of another model: {name} is {given.get(name, 'not there')} in it",
                f"{own.get(name, 'no such parameter')}, as this model has",
                "load it into the model it was saved from",
            )


def _plain(extra: Mapping[str, Any]) -> dict[str, Any]:
    try:
        json.dumps(extra)
    except (TypeError, ValueError) as error:
        raise RunError(f"extra cannot be saved: {error}", "numbers, texts, lists and dicts of them") from error
    return dict(extra)


def _model_tensors(trainer: Trainer) -> dict[str, Tensor]:
    aliases = {alias for parameter in trainer.program.parameters for alias in parameter.aliases}
    return {f"model/{name}": tensor for name, tensor in trainer.state_dict().items() if name not in aliases}


def _states(trainer: Trainer, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, str, Any]]:
    for name, parameter in trainer.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            yield name, key, value


def _optimizer_tensors(trainer: Trainer, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    return {f"optimizer/{n}/{k}": value for n, k, value in _states(trainer, optimizer) if isinstance(value, Tensor)}


def _optimizer_numbers(trainer: Trainer, optimizer: torch.optim.Optimizer) -> list[list[Any]]:
    return [[n, k, value] for n, k, value in _states(trainer, optimizer) if not isinstance(value, Tensor)]


def _groups(trainer: Trainer, optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    names = {id(parameter): name for name, parameter in trainer.named_parameters()}
    idle = set(map(id, trainer.idle_parameters()))
    found = []
    for group in optimizer.param_groups:
        own = [p for p in group["params"] if id(p) not in idle]
        strangers = [tuple(p.shape) for p in own if id(p) not in names]
        if strangers:
            raise RunError(f"the optimizer has a parameter of shape {strangers[0]}", "parameters of the trainer only")
        plain = {k: v.item() if isinstance(v, Tensor) else v for k, v in group.items() if k != "params"}
        found.append(plain | {"params": [names[id(parameter)] for parameter in own]})
    return found


def _of_stages(trainer: Trainer, own: Any) -> list[Any]:
    """What one rank of each stage has to say, in the order of the stages."""
    if len(trainer.plan.stages) == 1:
        return [own]
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, own)
    return [found[group[0].mesh.ranks[0]] for group in trainer.plan.groups]


def _all_groups(trainer: Trainer, optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Of all stages: each has made its optimizer alike, for its own parameters."""
    stages = _of_stages(trainer, _groups(trainer, optimizer))
    if len({len(groups) for groups in stages}) != 1:
        raise RunError(
            f"optimizers with {', '.join(str(len(groups)) for groups in stages)} groups on the stages",
            "the same number on each",
        )
    order = {parameter.name: number for number, parameter in enumerate(trainer.program.parameters)}
    return [
        group[0] | {"params": sorted((name for one in group for name in one["params"]), key=order.__getitem__)}
        for group in zip(*stages, strict=True)
    ]


def _empty_states(
    trainer: Trainer, optimizer: torch.optim.Optimizer, stored: Metadata
) -> dict[tuple[str, str], Tensor]:
    """Room for each state that was saved: in the parameter's own layout where it has its shape.

    Other states (step counts) are on the CPU, unless the optimizer reads them in its kernels.
    """
    parameters = dict(trainer.named_parameters())
    inside = any(group.get("fused") or group.get("capturable") for group in optimizer.param_groups)
    found: dict[tuple[str, str], Tensor] = {}
    for full, entry in stored.state_dict_metadata.items():
        kind, _, rest = full.partition("/")
        if kind != "optimizer" or not isinstance(entry, TensorStorageMetadata):
            continue
        name, _, key = rest.rpartition("/")
        if name not in parameters and len(trainer.plan.stages) > 1:
            continue  # it lives on another stage
        data = parameters[name].data
        assert isinstance(data, DTensor)
        if entry.size == data.shape and data.dim():
            hosted, local = hosted_of(parameters[name]), local_tensor(data)
            if hosted is not None:
                found[name, key] = dtensor_like(hosted.memory.like(local).zero_(), data)
                continue
            found[name, key] = zeros(
                entry.size, dtype=data.dtype, device_mesh=data.device_mesh, placements=data.placements
            )
        else:
            device = trainer.device if inside else torch.device("cpu")
            found[name, key] = torch.zeros(entry.size, dtype=entry.properties.dtype, device=device)
    return found


def _restore(
    trainer: Trainer, optimizer: torch.optim.Optimizer, states: dict[tuple[str, str], Tensor], summary: dict[str, Any]
) -> None:
    name = type(optimizer).__name__
    if (saved_by := summary.get("optimizer", name)) != name:
        raise RunError(
            f"an optimizer of type {name}", f"{saved_by}, whose state was saved", "make that one, or pass None for it"
        )
    parameters = dict(trainer.named_parameters())
    given, own = summary["groups"], _all_groups(trainer, optimizer)
    if [sorted(group["params"]) for group in given] != [sorted(group["params"]) for group in own]:
        raise RunError(
            f"an optimizer with {len(own)} groups of parameters",
            f"the {len(given)} that were saved, with the same parameters in each",
            "make the optimizer as it was made then",
        )
    for group, saved in zip(optimizer.param_groups, given, strict=True):
        group.update({key: _like(value, group.get(key)) for key, value in saved.items() if key != "params"})
    for (name, key), tensor in states.items():
        optimizer.state[parameters[name]][key] = tensor
    for name, key, value in summary["numbers"]:
        if name in parameters:
            optimizer.state[parameters[name]][key] = value


def _like(value: Any, old: Any) -> Any:
    return tuple(value) if isinstance(value, list) and isinstance(old, tuple) else value
