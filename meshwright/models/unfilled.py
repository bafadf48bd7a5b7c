"""Models without storage: drawing their first weights would only take time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.nn import init
from torch.overrides import TorchFunctionMode

FILLS = frozenset({init.normal_, init.uniform_, init.kaiming_uniform_, init.kaiming_normal_, init.trunc_normal_})


class Unfilled(TorchFunctionMode):
    """Within it nothing is drawn for tensors on the meta device, which have no numbers to hold."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        tensor = args[0] if args else given.get("tensor")
        if func in FILLS and isinstance(tensor, Tensor) and tensor.is_meta:
            return tensor
        return func(*args, **given)
