"""What is remembered between calls: one context owns every cache of the process, so that all can be emptied at once.

Registering a rule empties them, for prices, strategies and traced pairs rest on rules. `mw.clear_caches()` does too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Protocol, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])


class Clearable(Protocol):
    def clear(self) -> None: ...


C = TypeVar("C", bound=Clearable)


class Caches:
    """The caches of a process. Modules make theirs by `memoized` and `own`, and keep no others."""

    def __init__(self) -> None:
        self._clear: list[Callable[[], None]] = []

    def memoized(self, maxsize: int | None = 128, typed: bool = False) -> Callable[[F], F]:
        """`functools.lru_cache`, emptied with the others."""

        def decorate(function: F) -> F:
            found = lru_cache(maxsize=maxsize, typed=typed)(function)
            self._clear.append(found.cache_clear)
            return cast(F, found)

        return decorate

    def own(self, table: C) -> C:
        """A dict, list or set in which a module remembers something, emptied with the others."""
        self._clear.append(table.clear)
        return table

    def clear(self) -> None:
        for clear in self._clear:
            clear()

    def __len__(self) -> int:
        return len(self._clear)


CACHES = Caches()


def clear_caches() -> None:
    """Forget everything that planning remembers: the memory goes back, and what is asked next is worked out anew."""
    CACHES.clear()
