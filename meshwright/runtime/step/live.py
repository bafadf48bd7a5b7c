"""Bytes that are alive on a rank while it runs: every storage from the op that makes it until nothing refers to it."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from meshwright.torch_compat import RecordingMode


class LiveBytes:
    """`counting(outside)` counts what ops make inside it, besides the tensors that are there already: peak_bytes is
    the most of both at once. What another thread makes counts once it is noted."""

    def __init__(self) -> None:
        self.bytes = self.peak_bytes = 0
        self._one = threading.RLock()
        self._known: set[int] = set()
        self._counted: dict[int, weakref.finalize[Any, Any]] = {}

    @contextmanager
    def counting(self, outside: Iterable[Tensor], ignored: Iterable[Tensor] = ()) -> Iterator[None]:
        self.bytes = self.peak_bytes = 0
        self._known = {id(tensor.untyped_storage()) for tensor in ignored}
        self.note(outside)
        try:
            with RecordingMode(lambda operator, args, kwargs, result: self.note(_tensors(result))):
                yield
        finally:
            with self._one:
                for end in self._counted.values():
                    end.detach()
                self._counted.clear()

    def note(self, tensors: Iterable[Tensor]) -> None:
        with self._one:
            for tensor in tensors:
                storage = tensor.untyped_storage()
                key, size = id(storage), storage.nbytes()
                if key not in self._known:
                    self._known.add(key)
                    self.bytes += size
                    self._counted[key] = weakref.finalize(storage, self._gone, key, size)
            self.peak_bytes = max(self.peak_bytes, self.bytes)

    def _gone(self, key: int, size: int) -> None:
        """On whichever thread lets go of it."""
        with self._one:
            self._known.discard(key)
            self._counted.pop(key, None)
            self.bytes -= size


def _tensors(result: Any) -> Iterator[Tensor]:
    if type(result) is Tensor:
        yield result
    elif isinstance(result, tuple | list):
        for one in result:
            yield from _tensors(one)
