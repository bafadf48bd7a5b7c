"""What `type` and `isinstance` tell a forward while it is traced: the classes that eager PyTorch has.

Traced tensors are fakes and traced sizes are symbols, so `type(x) is Tensor` and `isinstance(x.shape[0], int)` would be
False and take the other branch. The modules of the model's own code get a `type` and an `isinstance` of their own for
the time of the trace; everybody else keeps Python's.
"""

from __future__ import annotations

import builtins
import dis
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from meshwright.capture.tracing.code import code_reached
from meshwright.errors import CaptureError
from meshwright.torch_compat import is_fake

_NUMBERS: dict[type, type] = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}


@contextmanager
def eager_kinds(modules: Iterable[ModuleType]) -> Iterator[None]:
    """modules: of the model's own code. Names that they define themselves are left alone."""
    made = {"type": _Type, "isinstance": _isinstance}
    given = [(module, name) for module in modules for name in made if name not in vars(module)]
    for module, name in given:
        setattr(module, name, made[name])
    try:
        yield
    finally:
        for module, name in given:
            vars(module).pop(name, None)


def check_class_questions(model: nn.Module, loss: Callable[..., Any] | None) -> None:
    """`x.__class__ is Tensor` asks the tensor itself, which cannot be answered for: raises CaptureError."""
    for code in code_reached(model, loss):
        if "__class__" not in code.co_names or not {"Tensor", "Parameter"} & {*code.co_names, *code.co_freevars}:
            continue
        if (line := _compared(list(dis.get_instructions(code)))) is not None:
            raise CaptureError(
                f"`.__class__` is compared with a class of tensors in {code.co_qualname}, at "
                f"{Path(*Path(code.co_filename).parts[-3:])}:{line}, and is another one while a model is traced",
                "`type(x)` or `isinstance(x, torch.Tensor)`, which are answered as eager PyTorch does",
                "write `type(x)` for `x.__class__`",
            )


def _compared(code: list[dis.Instruction]) -> int | None:
    """The line on which `.__class__` and a class of tensors are compared."""
    line = None
    for at, step in enumerate(code):
        line = step.positions.lineno if step.positions and step.positions.lineno else line
        if step.argval == "__class__" and step.opname == "LOAD_ATTR":
            near = code[max(at - 4, 0) : at + 5]
            tests = any(each.opname in ("IS_OP", "COMPARE_OP", "CONTAINS_OP") for each in near)
            if tests and any(each.argval in ("Tensor", "Parameter") for each in near):
                return line
    return None


def _kind(value: object) -> type:
    """The class of a value in eager PyTorch."""
    found = builtins.type(value)
    if isinstance(value, Tensor) and is_fake(value):
        return nn.Parameter if isinstance(value, nn.Parameter) else Tensor
    return _NUMBERS.get(found, found)


def _isinstance(value: object, kinds: Any) -> bool:
    number = _NUMBERS.get(builtins.type(value))
    return isinstance(value, kinds) or (number is not None and issubclass(number, kinds))


class _Kinds(type):
    """Makes `_Type` behave as `type` does in everything but `type(x)`."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls is not _Type:  # a metaclass that a forward defines
            return super().__call__(*args, **kwargs)
        if len(args) != 1 or kwargs:
            return builtins.type(*args, **kwargs)
        found = _kind(args[0])
        return _Type if found is builtins.type else found

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, builtins.type) if cls is _Type else super().__instancecheck__(value)

    def __subclasscheck__(cls, kind: type) -> bool:
        return issubclass(kind, builtins.type) if cls is _Type else super().__subclasscheck__(kind)

    def __getitem__(cls, item: Any) -> Any:
        return builtins.type[item]


class _Type(type, metaclass=_Kinds):
    """`type`, as modules of the model's own code see it."""
