"""The loss that a step returns: its backward has run, and nothing that is computed from it has another."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from meshwright.errors import RunError
from meshwright.torch_compat import as_plain_tensors


class StepLoss(Tensor):
    """A tensor like any other but for `backward`, and so are sums and quotients of it. It is saved as a plain one."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with as_plain_tensors():
            found = func(*args, **(kwargs or {}))
            return found.as_subclass(cls) if type(found) is Tensor and found.is_floating_point() else found

    def backward(self, *args: Any, **kwargs: Any) -> None:
        raise RunError(
            "backward() of a loss that trainer.step returned, or of what was computed from it",
            "optimizer.step() right after trainer.step(batch), which has run backward",
            "leave out loss.backward(). Steps add to the gradients until zero_grad(): for the mean over n steps divide "
            "each parameter's .grad by n before optimizer.step(), or plan for a global batch of all their samples",
        )

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        with as_plain_tensors():
            return repr(self.as_subclass(Tensor))

    def __reduce_ex__(self, protocol: Any) -> Any:
        with as_plain_tensors():
            plain: Any = self.as_subclass(Tensor)
            return plain.__reduce_ex__(protocol)
