"""Models of one's own: `path/to/file.py:function` or `package.module:function`.

The function takes nothing and returns `(model, batch)` or `(model, batch, loss)`. `batch` is a tuple or dict of
tensors, of shapes such as `(8, 128)` (float32), or of `(shape, dtype)` pairs.
Its rows are the global batch, unless that is given.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from meshwright.errors import MeshwrightError, ModelError, counted, what_is
from meshwright.models.batch import batch_names
from meshwright.models.family import BATCH, Family, Settings, Shapes


def factory_family(reference: str) -> Family:
    place, _, name = reference.rpartition(":")
    factory = _function(place, name)

    @cache
    def meta() -> tuple[nn.Module, Shapes, Callable[..., Tensor] | None]:
        with torch.device("meta"):
            return _checked(reference, _call(reference, factory))

    def build(_: Settings) -> nn.Module:
        return _checked(reference, _call(reference, factory))[0]

    def shapes(_: Settings, batch: int) -> Shapes:
        return _at_batch(meta()[1], batch)

    def own_batch() -> dict[str, Tensor]:
        """The same on every rank: random ones are drawn from one seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model, batch, *rest = _call(reference, factory)
        found = _by_name(reference, model, batch, rest[0] if rest else None)
        return found if all(isinstance(entry, Tensor) for entry in found.values()) else {}

    batch = _rows(meta()[1]) or BATCH
    return Family(reference, {}, build, shapes, meta()[2], batch=batch, own_batch=own_batch)


def _function(place: str, name: str) -> Callable[[], Any]:
    module = _load_file(place) if place.endswith(".py") else _load_module(place)
    found = getattr(module, name, None)
    if not callable(found):
        kinds = ", ".join(key for key, value in vars(module).items() if callable(value) and not key.startswith("_"))
        raise ModelError(f"{place} has no function {name!r}", f"one of {kinds or 'its functions'}", "correct the name")
    return found


def _load_file(place: str) -> ModuleType:
    path = Path(place)
    if not os.path.isfile(path):
        raise ModelError(f"no file {place}", "a Python file", "check the path")
    # Under a name of its own, so that functions in it can be found again by `module:function`.
    name = f"meshwright_models_{path.stem}"
    spec = spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module
    folder = str(path.resolve().parent)
    if folder not in sys.path:  # as where Python runs the file: its neighbours can be imported
        sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        todo = f"run `python {place}` to see where"
        raise ModelError(f"{place} raises {type(error).__name__}: {error}", "a file that imports", todo) from error
    return module


def _load_module(place: str) -> ModuleType:
    try:
        return import_module(place)
    except ImportError as error:
        raise ModelError(f"no module {place!r}: {error}", "an importable module or a .py file", "check it") from error
    except Exception as error:
        raise ModelError(
            f"module {place!r} raises {type(error).__name__}: {error}", "a module that imports", "import it by itself"
        ) from error


def _call(reference: str, factory: Callable[[], Any]) -> Any:
    try:
        return factory()
    except MeshwrightError:
        raise
    except Exception as error:
        raise ModelError(
            f"{reference} raises {type(error).__name__}: {error}",
            "a function of no arguments that returns (model, batch) or (model, batch, loss)",
            "call it by itself",
        ) from error


def _checked(reference: str, found: Any) -> tuple[nn.Module, Shapes, Callable[..., Tensor] | None]:
    wanted = "(model, batch) or (model, batch, loss)"
    if not isinstance(found, tuple):
        raise ModelError(f"{reference} returned {what_is(found)}", wanted, "return these")
    if len(found) not in (2, 3):
        raise ModelError(f"{reference} returned a tuple of {len(found)}", wanted, "return these")
    model, batch, *rest = found
    loss = rest[0] if rest else None
    if not isinstance(model, nn.Module):
        todo = "return an instance of it" if isinstance(model, type) else "return the model there"
        raise ModelError(f"{reference} returned {what_is(model)} as the model", f"{wanted}, with an nn.Module", todo)
    if loss is not None and not callable(loss):
        raise ModelError(f"{reference} returned {what_is(loss)} as the loss", "a callable", "return a function there")
    return model, _shapes(reference, model, batch, loss), loss


def _shapes(reference: str, model: nn.Module, batch: Any, loss: Callable[..., Tensor] | None) -> Shapes:
    return {name: _shape(reference, name, entry) for name, entry in _by_name(reference, model, batch, loss).items()}


def _by_name(reference: str, model: nn.Module, batch: Any, loss: Callable[..., Tensor] | None) -> dict[str, Any]:
    if not isinstance(batch, Mapping):
        names = batch_names(model, loss, len(batch)) if isinstance(batch, tuple | list) else []
        if not isinstance(batch, tuple | list):
            expected = "a dict, or a tuple with one entry per argument of forward"
            raise ModelError(f"{reference} returned {what_is(batch)} as the batch", expected, "return one of these")
        if len(batch) > len(names):
            raise ModelError(
                f"{reference} returned a batch of {len(batch)} entries",
                f"one for each of the {counted(len(names), 'argument')} of forward ({', '.join(names)})",
                "return (model, batch, loss): the loss takes what forward returns and the rest of the batch",
            )
        batch = dict(zip(names, batch, strict=False))
    return dict(batch)


def _shape(reference: str, name: str, entry: Any) -> tuple[tuple[int, ...], str]:
    if isinstance(entry, Tensor):
        return tuple(entry.shape), _dtype(entry.dtype)
    if isinstance(entry, tuple | list):
        if entry and all(isinstance(size, int) for size in entry):
            return tuple(entry), "float32"
        if len(entry) == 2 and isinstance(entry[0], tuple | list) and isinstance(entry[1], torch.dtype | str):
            return tuple(entry[0]), _dtype(entry[1])
    raise ModelError(
        f"{reference} returned {entry!r} for the batch entry {name!r}",
        "a tensor, a shape, or (shape, dtype)",
        "return one of these",
    )


def _dtype(dtype: torch.dtype | str) -> str:
    return str(dtype).removeprefix("torch.")


def _rows(shapes: Shapes) -> int:
    """The leading size that most entries share; zero where none has a size."""
    leading = [shape[0] for shape, _ in shapes.values() if shape]
    return max(leading, key=lambda size: (leading.count(size), size), default=0)


def _at_batch(shapes: Shapes, batch: int) -> Shapes:
    """The same with another number of rows."""
    own = _rows(shapes)
    return {
        name: ((batch, *shape[1:]) if shape and shape[0] == own else shape, dtype)
        for name, (shape, dtype) in shapes.items()
    }
