"""Where weights come from: the user's model, a function that builds one, or safetensors files.

Whichever it is, a rank takes its own piece of one parameter after the other.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from meshwright.capture.program import Parameter
from meshwright.errors import RunError
from meshwright.layout import Layout
from meshwright.runtime.weights.deferred import Deferred
from meshwright.runtime.weights.store import Source

Region = tuple[slice, ...]


def region(layout: Layout, shape: Sequence[int], mesh_sizes: Sequence[int], coordinates: Sequence[int]) -> Region:
    """Which part of a tensor the rank at these coordinates holds; pieces are cut as `torch.chunk` does."""
    found = []
    for dim, length in enumerate(shape):
        start, end = 0, length
        for axis in layout.sharding(dim):
            width = -(-(end - start) // mesh_sizes[axis])
            start = min(end, start + coordinates[axis] * width)
            end = min(end, start + width)
        found.append(slice(start, end))
    return tuple(found)


class Weights:
    """A model's tensors, by name: of a model that is there, of one that is deferred, or of files."""

    def __init__(
        self, model: nn.Module, deferred: Deferred | None, files: SafetensorsFiles | None, device: torch.device
    ) -> None:
        self.model, self.deferred, self.files, self.device = model, deferred, files, device
        self.named: dict[str, Tensor] = dict(model.named_parameters(remove_duplicate=False))
        self.named |= dict(model.named_buffers(remove_duplicate=False))

    def source(self, mesh_sizes: Sequence[int], coordinates: Sequence[int]) -> Source:
        def piece(parameter: Parameter, storage: Layout, dtype: torch.dtype) -> Tensor:
            where = region(storage, parameter.type.sizes, mesh_sizes, coordinates)
            # A copy in any case: the user's model is not trained behind their back.
            found = self._piece((parameter.name, *parameter.aliases), where, parameter.type.sizes)
            return found.to(self.device, dtype, copy=True).contiguous()

        return piece

    def whole(self, name: str) -> Tensor:
        """A buffer, or a parameter that nothing trains."""
        tensor = self.named[name]
        if self.files and name in self.files:
            return self.files.piece(name, tuple(slice(0, n) for n in tensor.shape), tuple(tensor.shape)).clone()
        return self._whole(name).clone()

    def _piece(self, names: Sequence[str], where: Region, shape: tuple[int, ...]) -> Tensor:
        if self.files:
            name = next((name for name in names if name in self.files), names[0])
            return self.files.piece(name, where, shape)
        return self._whole(names[0])[where]

    def _whole(self, name: str) -> Tensor:
        tensor = self.named[name].detach()
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
        index = self.path / "model.safetensors.index.json" if self.path.is_dir() else self.path
        if index.name.endswith(".json") and index.exists():
            listed = json.loads(index.read_text())["weight_map"]
            return {name: index.parent / file for name, file in listed.items()}
        file = self.path / "model.safetensors" if self.path.is_dir() else self.path
        if not file.exists():
            raise RunError(f"weights {self.path}", "a safetensors file, its index, or a folder with one", "check it")
        self._open = {}
        return dict.fromkeys(_reader(file).keys(), file)

    def _reader(self, file: Path) -> Any:
        if file not in self._open:
            self._open[file] = _reader(file)
        return self._open[file]


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
) -> Weights:
    if isinstance(model, nn.Module):
        return Weights(model, None, SafetensorsFiles(files) if files else None, device)
    deferred = Deferred(model, seed)
    if not isinstance(deferred.model, nn.Module):
        raise RunError(
            f"the function returned a {type(deferred.model).__name__}", "a function that returns a model", "correct it"
        )
    return Weights(deferred.model, deferred, SafetensorsFiles(files) if files else None, device)
