"""Checkpoints through torch.distributed.checkpoint: saved under one plan, loaded under any other.

A folder holds one checkpoint per saved step, `step-000050`. It is written under a hidden name and renamed when every
rank's part is there, so what carries its name is complete, and a save that is killed costs nothing that was.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load as read_tensors
from torch.distributed.checkpoint.state_dict_saver import save as write_tensors
from torch.distributed.tensor import DTensor, zeros

from meshwright.errors import RunError
from meshwright.runtime.trainer import Trainer

FORMAT = 1
SUMMARY = "meshwright.json"
_STEP = re.compile(r"step-(\d+)|\.old-step-(\d+)")
Folder = str | os.PathLike[str]


class Stateful(Protocol):
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any], /) -> None: ...


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a loaded checkpoint says of itself. extra: what the user gave to `save`."""

    path: Path
    step: int
    extra: dict[str, Any] = field(default_factory=dict)


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
    scratch = root / f".saving-{name}"
    _on_first(lambda: _clear(root, scratch), f"{root} cannot be written")
    tensors = _model_tensors(trainer) | _optimizer_tensors(trainer, optimizer)
    with trainer.watch.during("save"):
        write_tensors(tensors, checkpoint_id=scratch)
    summary = {
        "format": FORMAT,
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
        "extra": dict(extra or {}),
    }
    _on_first(lambda: _complete(scratch, root / name, summary, keep), f"{root / name} cannot be written")
    return root / name


def load(
    trainer: Trainer, optimizer: torch.optim.Optimizer | None, folder: Folder, *, loader: Stateful | None = None
) -> Checkpoint:
    """Bring trainer, optimizer, random numbers and loader to where they were saved; call it on every rank.

    folder: where checkpoints are, of which the newest complete one is taken, or one checkpoint.
    """
    summary = summary_of(folder)
    path = Path(summary["path"])
    _check_model(trainer, summary, path)
    stored = _metadata(path)
    tensors = _model_tensors(trainer)
    missing = [key for key in tensors if key not in stored.state_dict_metadata]
    if missing:
        raise RunError(f"{path} has no {missing[0].partition('/')[2]}", "every tensor of the model", "use another one")
    states = {} if optimizer is None else _empty_states(trainer, optimizer, stored)
    wanted = tensors | {f"optimizer/{name}/{key}": tensor for (name, key), tensor in states.items()}
    with trainer.watch.during("load"):
        read_tensors(wanted, checkpoint_id=path)
    if optimizer is not None:
        _restore(trainer, optimizer, states, summary)
    trainer.steps, trainer.seed = summary["step"], summary["seed"]
    torch.set_rng_state(torch.tensor(list(base64.b64decode(summary["random"])), dtype=torch.uint8))
    if loader is not None and summary["loader"] is not None:
        loader.load_state_dict(summary["loader"])
    return Checkpoint(path, summary["step"], summary["extra"])


def latest(folder: Folder) -> Path | None:
    """The newest complete checkpoint in a folder, or the folder itself where it is one; None if there is none."""
    root = Path(folder)
    if (root / SUMMARY).exists():
        return root
    found = [entry for entry in _checkpoints(root) if (entry / SUMMARY).exists()]
    return max(found, key=_step_of) if found else None


def summary_of(folder: Folder) -> dict[str, Any]:
    """What the newest complete checkpoint says of itself, and where it is; RunError where there is none."""
    path = latest(folder)
    if path is None:
        raise _nothing_in(Path(folder))
    return _summary(path) | {"path": str(path)}


def _checkpoints(root: Path) -> list[Path]:
    return [entry for entry in root.iterdir() if _STEP.fullmatch(entry.name)] if root.is_dir() else []


def _step_of(path: Path) -> tuple[int, bool]:
    """By step; of two with the same, the one that has not been replaced."""
    match = _STEP.fullmatch(path.name)
    assert match is not None
    return int(match[1] or match[2]), match[1] is not None


def _nothing_in(root: Path) -> RunError:
    half = sorted(entry.name for entry in root.glob(".saving-*")) if root.is_dir() else []
    if half:
        return RunError(
            f"{root} has only a half-written checkpoint, {half[0]}", "a complete one", "start anew, or name another"
        )
    what = "has no checkpoint" if root.is_dir() else "is not there"
    return RunError(f"{root} {what}", "a folder that `save` wrote to", "check the path")


def _summary(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((path / SUMMARY).read_text())
    except (OSError, ValueError) as error:
        raise RunError(f"{path / SUMMARY} cannot be read: {error}", "a checkpoint", "use another one") from error
    if found.get("format") != FORMAT:
        raise RunError(f"{path} has format {found.get('format')}", f"format {FORMAT}", "use the version that wrote it")
    for name, size in found["files"].items():
        file = path / name
        if not file.exists() or file.stat().st_size != size:
            there = f"{file.stat().st_size:,} bytes" if file.exists() else "not there"
            raise RunError(f"{file} is {there}", f"{size:,} bytes, as when it was saved", "use another checkpoint")
    return found


def _metadata(path: Path) -> Metadata:
    try:
        return FileSystemReader(path).read_metadata()
    except Exception as error:  # it is unpickled, and damaged bytes may raise anything
        raise RunError(f"{path / '.metadata'} cannot be read: {error}", "a checkpoint", "use another one") from error


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
    found = []
    for group in optimizer.param_groups:
        strangers = [tuple(p.shape) for p in group["params"] if id(p) not in names]
        if strangers:
            raise RunError(f"the optimizer has a parameter of shape {strangers[0]}", "parameters of the trainer only")
        plain = {k: v.item() if isinstance(v, Tensor) else v for k, v in group.items() if k != "params"}
        found.append(plain | {"params": [names[id(parameter)] for parameter in group["params"]]})
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


def _clear(root: Path, scratch: Path) -> None:
    root.mkdir(parents=True, exist_ok=True)
    for stale in (*root.glob(".saving-*"), scratch):
        if stale.exists():
            shutil.rmtree(stale)
    scratch.mkdir()


def _complete(scratch: Path, target: Path, summary: dict[str, Any], keep: int | None) -> None:
    files = {str(p.relative_to(scratch)): p.stat().st_size for p in scratch.rglob("*") if p.is_file()}
    with open(scratch / SUMMARY, "w", encoding="utf-8") as file:
        json.dump(summary | {"files": files}, file)
        file.flush()
        os.fsync(file.fileno())
    old = target.with_name(f".old-{target.name}")
    if target.exists():
        shutil.rmtree(old, ignore_errors=True)
        target.rename(old)
    scratch.rename(target)
    _sync_folder(target.parent)
    shutil.rmtree(old, ignore_errors=True)
    for previous in sorted(_checkpoints(target.parent), key=_step_of)[: -keep if keep else 0]:
        shutil.rmtree(previous)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _on_first(action: Callable[[], None], what: str) -> None:
    """Run on rank 0 while the others wait; where it fails, every rank raises the same."""
    fault: list[str | None] = [None]
    if dist.get_rank() == 0:
        try:
            action()
        except OSError as error:
            fault = [str(error)]
    dist.broadcast_object_list(fault, src=0)
    if fault[0] is not None:
        raise RunError(f"{what}: {fault[0]}", "a folder with room that can be written", "free some, or name another")
