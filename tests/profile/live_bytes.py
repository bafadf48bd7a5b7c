"""The most bytes that tensors held at once, as real execution on CPU has it: an oracle for liveness."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """Counts each storage from the op that returns it first until nothing refers to it any more."""

    def __init__(self, outside: list[Tensor]) -> None:
        super().__init__()
        self.known = {id(t.untyped_storage()): t.untyped_storage() for t in outside}
        self.outside = set(self.known)
        self.live_bytes = self.peak_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._count(leaf)
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        return result

    def _count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = id(storage), storage.nbytes()
        if key in self.known:
            return
        self.known[key] = None  # type: ignore[assignment]
        self.live_bytes += size

        def gone() -> None:
            self.known.pop(key, None)
            self.live_bytes -= size

        weakref.finalize(storage, gone)


def peak_of(outside: list[Tensor], run: Callable[[], Any]) -> int:
    with LiveBytes(outside) as mode:
        run()
    return mode.peak_bytes
