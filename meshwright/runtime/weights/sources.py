"""Where weights come from: the user's model, a function that builds one, or safetensors files.

Whichever it is, a rank takes its own piece of one parameter after the other.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from meshwright.capture.program import Parameter, Program
from meshwright.errors import RunError
from meshwright.layout import Layout
from meshwright.runtime.weights.adoption import forget, skeleton
from meshwright.runtime.weights.deferred import Deferred
from meshwright.runtime.weights.regions import Region, region, whole
from meshwright.runtime.weights.store import Source


class Weights:
    """A model's tensors, by name: of a model that is there, of one that is deferred, or of files.

    model: the one that the trainer adopts. named: its tensors, or those of the model that it is a copy of. adopts:
    whether the memory of these is let go as ranks take their pieces.
    """

    def __init__(
        self,
        model: nn.Module,
        deferred: Deferred | None,
        files: SafetensorsFiles | None,
        device: torch.device,
        copy: bool = False,
    ) -> None:
        self.deferred, self.files, self.device, self.adopts = deferred, files, device, not copy
        self.named: dict[str, Tensor] = dict(model.named_parameters(remove_duplicate=False))
        self.named |= dict(model.named_buffers(remove_duplicate=False))
        self.model = skeleton(model) if copy else model

    def source(self, mesh_sizes: Sequence[int], coordinates: Sequence[int]) -> Source:
        def piece(parameter: Parameter, storage: Layout, dtype: torch.dtype) -> Tensor:
            where = region(storage, parameter.type.sizes, mesh_sizes, coordinates)
            found = self._piece((parameter.name, *parameter.aliases), where, parameter.type.sizes)
            made = found.to(self.device, dtype, copy=not self._may_keep(found)).contiguous()
            if self.adopts:
                forget(self.named[parameter.name])
            return made

        return piece

    def _may_keep(self, found: Tensor) -> bool:
        """Whether an adopted model's own memory may become the stored one: all of it, which no other process has."""
        alone = found.is_cuda and found.untyped_storage().nbytes() == found.nbytes and found.is_contiguous()
        return self.adopts and alone and not self.files and self.deferred is None

    def check(self, program: Program) -> None:
        """Refuses a model without values, before any of it is let go."""
        for parameter in program.parameters:
            names = (parameter.name, *parameter.aliases)
            if self.named[parameter.name].is_meta and self.deferred is None and not self._in_files(names):
                self._whole(parameter.name)

    def _in_files(self, names: Sequence[str]) -> bool:
        return self.files is not None and any(name in self.files for name in names)

    def whole(self, name: str) -> Tensor:
        """A buffer, or a parameter that nothing trains."""
        tensor = self.named[name]
        if self.files and name in self.files:
            return self.files.piece(name, tuple(slice(0, n) for n in tensor.shape), tuple(tensor.shape)).clone()
        return self._whole(name) if self.adopts else self._whole(name).clone()

    def _piece(self, names: Sequence[str], where: Region, shape: tuple[int, ...]) -> Tensor:
        if self.files:
            name = next((name for name in names if name in self.files), names[0])
            return self.files.piece(name, where, shape)
        return self._whole(names[0])[where]

    def _whole(self, name: str) -> Tensor:
        tensor = whole(self.named[name].detach())
        if self.deferred and tensor.is_meta:
            return self.deferred.tensor(name, tensor)
        if tensor.is_meta:
            raise RunError(
                f"{name} is on the meta device and has no values" + (f", nor has {self.files}" if self.files else ""),
                "a model with weights, a function that builds one, or a file that has them",
                "build the model outside torch.device('meta'), pass the function that builds it, or weights=",
            )
        return tensor


class SafetensorsFiles:
    """One file, or a folder with `model.safetensors` or an index of several; opened where first read."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._places = self._find()
        self._open: dict[Path, Any] = {}

    def __str__(self) -> str:
        return str(self.path)

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def piece(self, name: str, where: Region, shape: tuple[int, ...]) -> Tensor:
        if name not in self._places:
            raise RunError(
                f"{self.path} has no {name!r}", "a tensor for every parameter of the model", "check the file"
            )
        part = self._reader(self._places[name]).get_slice(name)
        if tuple(part.get_shape()) != tuple(shape):
            raise RunError(
                f"{name} has shape {tuple(part.get_shape())} in {self.path}", f"{tuple(shape)}, as the model has"
            )
        # A tensor without dims takes no slices.
        found: Tensor = part[where] if where else self._reader(self._places[name]).get_tensor(name)
        return found

    def _find(self) -> dict[str, Path]:
        index = self.path / "model.safetensors.index.json" if os.path.isdir(self.path) else self.path
        if index.name.endswith(".json") and os.path.exists(index):
            return {name: index.parent / file for name, file in _listed(index).items()}
        file = self.path / "model.safetensors" if os.path.isdir(self.path) else self.path
        if not os.path.exists(file):
            raise RunError(f"weights {self.path}", "a safetensors file, its index, or a folder with one", "check it")
        self._open = {}
        return dict.fromkeys(_reader(file).keys(), file)

    def _reader(self, file: Path) -> Any:
        if file not in self._open:
            self._open[file] = _reader(file)
        return self._open[file]


def _listed(index: Path) -> dict[str, str]:
    """By tensor, the file in the index's folder that holds it."""
    try:
        listed: dict[str, str] = msgspec.json.decode(index.read_bytes(), type=_Index).weight_map
    except (OSError, msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise RunError(f"{index} cannot be read: {error}", "an index of safetensors files", "check it") from error
    for file in listed.values():
        if file in ("", ".", "..") or Path(file).name != file or "\0" in file:
            raise RunError(f"{index} names the file {file[:80]!r}", "files in its own folder", "use another index")
    return listed


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


def _reader(file: Path) -> Any:
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise RunError("safetensors is not installed", "it for weights=", "pip install 'meshwright[hf]'") from error
    try:
        return safe_open(file, framework="pt")
    except (OSError, SafetensorError) as error:
        raise RunError(f"{file} cannot be read: {error}", "a safetensors file", "check it") from error


def weights_of(
    model: nn.Module | Callable[[], nn.Module],
    files: str | os.PathLike[str] | None,
    seed: int,
    device: torch.device,
    copy: bool = False,
) -> Weights:
    """copy: leave a model that is given as it is."""
    if isinstance(model, nn.Module):
        return Weights(model, None, SafetensorsFiles(files) if files else None, device, copy)
    deferred = Deferred(model, seed)
    if not isinstance(deferred.model, nn.Module):
        raise RunError(
            f"the function returned a {type(deferred.model).__name__}", "a function that returns a model", "correct it"
        )
    return Weights(deferred.model, deferred, SafetensorsFiles(files) if files else None, device)
