"""Captures that are made once for all tests, ranks of pools included: else they take a third of the suite's time. So
are trials of ops that no rule is written for.

`share` puts this in the place of `meshwright.capture.capture`. Tests of the capture itself are told apart by `fresh`.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from fcntl import LOCK_EX, flock
from functools import wraps
from pathlib import Path
from types import FunctionType
from typing import Any

from torch import Tensor, nn

from meshwright.capture import Precision, Program
from meshwright.capture import capture as captured
from meshwright.capture.precision import check_precision, compute_dtype
from meshwright.rules import isolated as trials
from meshwright.rules.findings import key_of
from meshwright.rules.isolated import isolated as tried

Key = tuple[object, ...]
FOLDER = "MESHWRIGHT_TEST_CAPTURES"
"""The environment variable that names a folder, in which processes of one session find each other's captures."""
_OF_TORCH = frozenset(vars(nn.Module())) | {"_flat_weights", "_flat_weight_refs"}
"""Members that modules have from torch; a recurrent layer lists its parameters once more."""


class _Sharing:
    on = True


def remembering(capture: Callable[..., Program]) -> Callable[..., Program]:
    """`capture`, which hands out again what it made of a model that is built alike, for a batch of the same sizes."""
    known: dict[Key, Program] = {}

    @wraps(capture)
    def found(model: nn.Module, batch: object, loss: object = None, **options: object) -> Program:
        try:
            key = (*_modules(model), *_batch(batch), loss, *_options(model, **options))
            again = known.get(key) if _Sharing.on else None
        except (AttributeError, TypeError):  # something that a key cannot hold
            return capture(model, batch, loss, **options)
        if not _Sharing.on:
            return capture(model, batch, loss, **options)
        if again is None:
            file = file_of(key)
            with alone(file):
                again = read_file(file) or capture(model, batch, loss, **options)
                if not getattr(again, "warnings", ()):  # else each of them is to warn
                    known[key] = again
                    write_file(file, again)
        return again

    return found


@contextmanager
def fresh() -> Iterator[None]:
    """Every capture is made anew."""
    _Sharing.on = False
    try:
        yield
    finally:
        _Sharing.on = True


def share() -> None:
    """Called before anything else imports the function."""
    sys.modules["meshwright.capture"].capture = capture  # type: ignore[attr-defined]
    trials.isolated = isolated


def isolated(function: Callable[[Any], Any], call: Any) -> Any:
    """The answer of a trial; those of torch's own ops are the same in every process."""
    target, *rest = key_of(call)
    file = file_of((function, target, repr(rest))) if target.startswith("aten.") and _Sharing.on else None
    if (found := read_file(file)) is None:
        found = tried(function, call)
        write_file(file, found)
    return found


def _options(
    model: nn.Module,
    precision: Precision | None = None,
    keyed: bool = True,
    fine: bool = False,
    allow: str | Iterable[str] = (),
) -> Key:
    """What an option is if it is not given, is given too. Of a precision a capture sees the dtype alone."""
    check_precision(model, precision)
    return (compute_dtype(precision), keyed, fine, allow if isinstance(allow, str) else tuple(allow))


def _modules(model: nn.Module) -> Iterator[object]:
    """All that a capture may see of a model. Raises TypeError where that is not known."""
    places: dict[int, int] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        yield (
            path,
            type(module),
            module.training,
            *module._modules.keys(),
            *sorted(module._non_persistent_buffers_set),
        )
        if module._forward_hooks or module._forward_pre_hooks:
            raise TypeError("hooks")
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):  # a tied one has its first place
            yield (name, tensor if tensor is None else (places.setdefault(id(tensor), len(places)), *_tensor(tensor)))
        for name, value in vars(module).items():
            if name not in _OF_TORCH:
                yield (name, _plain(value))


def _plain(value: object) -> object:
    if isinstance(value, tuple | list):
        return tuple(map(_plain, value))
    if value is None or isinstance(value, bool | int | float | str | type):
        return (type(value), value)
    raise TypeError(f"{type(value)}")


def _batch(batch: object) -> Iterator[object]:
    named = dict(enumerate(batch)) if isinstance(batch, Sequence) else batch
    if not isinstance(named, Mapping):
        raise TypeError(f"{type(batch)}")
    return iter((type(batch), *named, *map(_tensor, named.values())))


def _tensor(tensor: Tensor) -> Key:
    return (tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device, tensor.requires_grad)


def file_of(key: Key) -> Path | None:
    """Where other processes look for it; None of what has another name there, or none."""
    folder = os.environ.get(FOLDER)
    with suppress(TypeError):
        return Path(folder, hashlib.sha256(_named(key).encode()).hexdigest()) if folder else None
    return None


def _named(value: object) -> str:
    if isinstance(value, tuple):
        return f"({','.join(map(_named, value))})"
    if isinstance(value, type | FunctionType):
        if "<" in value.__qualname__ or value.__module__ == "__main__":
            raise TypeError(value.__qualname__)
        return f"{value.__module__}.{value.__qualname__}"
    if callable(value):
        raise TypeError(f"{type(value)}")
    return repr(value)


@contextmanager
def alone(file: Path | None) -> Iterator[None]:
    """One process at a time makes a file: ranks that ask for the same at once wait for the first of them."""
    if file is None:
        yield
        return
    with open(file.with_suffix(".lock"), "w") as lock:
        flock(lock, LOCK_EX)
        yield


def read_file(file: Path | None) -> Any:
    with suppress(OSError):
        return pickle.loads(file.read_bytes()) if file else None
    return None


def write_file(file: Path | None, made_here: Any) -> None:
    if file is not None and not file.exists():
        made = file.with_suffix(f".{os.getpid()}")
        with suppress(OSError):  # others make it themselves
            made.write_bytes(pickle.dumps(made_here))
            made.replace(file)


capture = remembering(captured)
