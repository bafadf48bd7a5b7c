"""What a forward asks of torch that export would record wrongly or not at all, met while it is traced.

A torch function mode, so that it concerns the thread that captures and no other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from meshwright.capture.tracing.lines import line_here
from meshwright.capture.tracing.questions import Questions
from meshwright.capture.tracing.swallowed import noted
from meshwright.errors import CaptureError
from meshwright.torch_compat import DATA_DEPENDENT, is_fake

_DATA: Any = Tensor.data
_GET_DATA, _SET_DATA = _DATA.__get__, _DATA.__set__
_HOOKS = ("register_hook", "register_post_accumulate_grad_hook")
_VALUES = ("item", "tolist", "numpy", "data_ptr", "__int__", "__float__", "__index__", "__complex__", "__array__")
"""Ways from a tensor to its values."""
_DERIVATIVES: tuple[Any, ...] = (torch.autograd.grad, Tensor.backward)


class Intercept(TorchFunctionMode):
    """`.data` as `.detach()`, which export records; questions about values by `Questions`; hooks are refused."""

    def __init__(self, questions: Questions) -> None:
        super().__init__()
        self.questions = questions

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is Tensor.__bool__ or (func is Tensor.item and args[0].dtype is torch.bool):
            return self._asked(func, args[0])
        if func == _GET_DATA:
            return args[0].detach()
        if func == _SET_DATA:
            return _replace(args[0], args[1])
        name = getattr(func, "__name__", "")
        if name in _HOOKS:
            raise noted(_refuse_hook(f"`{name}` in the forward"))
        if func in _DERIVATIVES:
            raise noted(refuse_derivatives())
        for arg in args:
            if isinstance(arg, Tensor) and arg.requires_grad and not is_fake(arg):
                raise noted(_refuse_stray(arg))
        result = _called(func, name, args, kwargs)
        self.questions.note(name, args, result)
        return result

    def _asked(self, func: Callable[..., Any], tensor: Tensor) -> bool:
        try:
            found = func(tensor)
        except DATA_DEPENDENT:
            return self.questions.answer(tensor)
        return found if isinstance(found, bool) else self.questions.answer(tensor)


def _called(func: Callable[..., Any], name: str, args: Any, kwargs: Any) -> Any:
    """Its result. Errors that eager would not have raised are noted: a value was asked for, and fakes have none."""
    try:
        return func(*args, **kwargs)
    except DATA_DEPENDENT as error:
        raise noted(error) from None
    except Exception as error:
        raise (noted(error) if name in _VALUES else error) from None


def _replace(written: Tensor, value: Tensor) -> None:
    """`x.data = value`: what it holds from now on."""
    if written.shape != value.shape or written.dtype != value.dtype:
        error = CaptureError(
            f"`.data` is given a tensor of another shape or dtype, at {line_here()}",
            "a forward that leaves the shapes of its tensors alone",
            "make a new tensor instead",
        )
        raise noted(error)
    with torch.no_grad():
        written.detach().copy_(value)


def _refuse_stray(tensor: Tensor) -> CaptureError:
    return CaptureError(
        f"the forward reads a tensor of shape {tuple(tensor.shape)} that requires a gradient and is no parameter "
        f"of the model, at {line_here()}",
        "everything that is trained among the model's parameters",
        "make it a parameter of the model, or detach it; what the loss needs (auxiliary losses) the forward "
        "returns with its output",
    )


def _refuse_hook(what: str) -> CaptureError:
    return CaptureError(
        f"{what}, at {line_here()}",
        "gradients that autograd computes and nothing changes on the way",
        "write it as a torch.autograd.Function at the top of a module, whose backward does what the hook does",
    )


def refuse_derivatives() -> CaptureError:
    return CaptureError(
        f"the forward takes derivatives of its own, at {line_here()}",
        "a forward and a loss whose gradients are taken once, by the training step",
        "train without this term (a gradient penalty), or write its derivative out in plain ops",
    )
