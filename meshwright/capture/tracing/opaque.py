"""Functions kept whole: a call that export records as one op instead of looking inside.

Export differentiates what it sees: a `torch.autograd.Function` with a backward of its own would become its
forward's derivative, and a scan over the sequence would be unrolled step by step. While capturing, such functions
are replaced by a call of one operator that names them; the Program then calls the function itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import CheckpointFunction

from meshwright.capture.tracing.traps import replaced
from meshwright.errors import CaptureError
from meshwright.torch_compat import symbolic_kernels

OPERATOR = "meshwright_capture.opaque.default"
SCANS = {
    "transformers.models.mamba.modeling_mamba": "mamba_selective_scan",
    "transformers.models.falcon_mamba.modeling_falcon_mamba": "mamba_selective_scan",
    "transformers.models.jamba.modeling_jamba": "mamba_selective_scan",
    "transformers.models.rwkv.modeling_rwkv": "rwkv_linear_attention_cpu",
}
"""Loops over the sequence of known models: module -> function."""


@dataclass(frozen=True, slots=True)
class Slot:
    """The place of the n-th tensor among a call's arguments or results."""

    index: int


@dataclass(frozen=True, slots=True)
class Call:
    """target: `module:name` of the function. args, kwargs: as given, tensors as Slots."""

    target: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]

    def run(self, tensors: list[Tensor]) -> Any:
        args = [fill(arg, tensors) for arg in self.args]
        if ":" not in self.target:
            return self.function(*args)
        return self.function(*args, **{key: fill(arg, tensors) for key, arg in self.kwargs})


_CALLS: list[Call] = []
"""Calls recorded while capturing; a node of the exported graph holds an index into them."""

_NESTED: dict[int, Any] = {}
"""How the results of each call nest, known once it has run on fakes."""


@torch.library.custom_op("meshwright_capture::opaque", mutates_args=())
def _opaque(tensors: list[Tensor], index: int) -> list[Tensor]:
    raise AssertionError("captured on fakes only")


@_opaque.register_fake
def _(tensors: list[Tensor], index: int) -> list[Tensor]:
    found: list[Tensor] = []
    with symbolic_kernels():
        _NESTED[index] = flatten(_CALLS[index].run(tensors), found)
    return blank(found)


def blank(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Tensors like these in memory of their own: an operator must not hand back its arguments'."""
    return [torch.empty_strided(t.size(), t.stride(), dtype=t.dtype, device=t.device) for t in tensors]


def recorded(index: int) -> Call:
    return _CALLS[index]


@contextmanager
def kept_whole() -> Iterator[list[str]]:
    """While capturing: custom backward functions and known scans are recorded, not traced. Yields their names."""
    names: list[str] = []
    _CALLS.clear()
    apply = torch.autograd.Function.apply.__func__  # type: ignore[attr-defined]

    def record_apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if cls is CheckpointFunction:  # what is kept and what is computed again is for plans to say
            function, _, *given = args
            return function(*given)
        # Other functions of torch's own (collectives) are export's business.
        if cls.__module__.partition(".")[0] == "torch":
            return apply(cls, *args, **kwargs)
        if "<locals>" in cls.__qualname__:
            raise CaptureError(
                f"{cls.__name__} is a torch.autograd.Function defined inside a function",
                "custom backward functions that can be imported by name",
                "move the class to the top of its module",
            )
        target = f"{cls.__module__}:{cls.__qualname__}.apply"
        return _record(target, lambda *a, **k: apply(cls, *a, **k), args, kwargs, names)

    with ExitStack() as stack:
        stack.enter_context(replaced(torch.autograd.Function, "apply", classmethod(record_apply)))
        stack.enter_context(replaced(saved_tensors_hooks, "__enter__", _refuse_saved(saved_tensors_hooks.__enter__)))
        for module, name in SCANS.items():
            if module in sys.modules:
                stack.enter_context(_patched_scan(module, name, names))
        yield names


def _refuse_saved(enter: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Those of torch's own (checkpoints, saving on the host) change nothing; a user's may change gradients."""

    def refuse(hooks: Any) -> Any:
        if type(hooks) is not saved_tensors_hooks:
            return enter(hooks)
        raise CaptureError(
            "the forward uses torch.autograd.graph.saved_tensors_hooks",
            "a forward whose saved tensors are what autograd saves",
            "leave them out: a plan decides what is kept, recomputed or offloaded",
        )

    return refuse


def _patched_scan(module: str, name: str, names: list[str]) -> Any:
    function: Any = getattr(sys.modules[module], name, None)

    def record_scan(*args: Any, **kwargs: Any) -> Any:
        return _record(f"{module}:{name}", function, args, kwargs, names)

    return replaced(sys.modules[module], name, record_scan)


def _record(target: str, function: Callable[..., Any], args: Any, kwargs: Any, names: list[str]) -> Any:
    tensors: list[Tensor] = []
    held = tuple(flatten(arg, tensors) for arg in args)
    named = tuple((key, flatten(arg, tensors)) for key, arg in kwargs.items())
    if target not in names:
        names.append(target)
    index = len(_CALLS)
    _CALLS.append(Call(target, function, held, named))
    results = _opaque(tensors, index)
    return fill(_NESTED[index], results)


def record_whole(
    kind: str, function: Callable[..., Any], about: tuple[Any, ...], tensors: list[Tensor]
) -> list[Tensor]:
    """Record one op of our own that takes and gives a list of tensors; `about` says what it stands for."""
    index = len(_CALLS)
    slots = tuple(Slot(place) for place in range(len(tensors)))
    _CALLS.append(Call(kind, function, slots, (("about", about),)))
    return list(_opaque(tensors, index))


@dataclass(frozen=True, slots=True)
class Entries:
    """A dict that holds tensors, among a call's arguments or results."""

    keys: tuple[Any, ...]
    values: tuple[Any, ...]


def flatten(tree: Any, tensors: list[Tensor]) -> Any:
    if isinstance(tree, Tensor):
        tensors.append(tree)
        return Slot(len(tensors) - 1)
    if type(tree) is dict:
        before = len(tensors)
        held = Entries(tuple(tree), tuple(flatten(item, tensors) for item in tree.values()))
        return held if len(tensors) > before else tree
    return tuple(flatten(item, tensors) for item in tree) if isinstance(tree, list | tuple) else tree


def fill(tree: Any, tensors: list[Tensor]) -> Any:
    if isinstance(tree, tuple):
        return tuple(fill(item, tensors) for item in tree)
    if isinstance(tree, Entries):
        return dict(zip(tree.keys, fill(tree.values, tensors), strict=True))
    return tensors[tree.index] if isinstance(tree, Slot) else tree
