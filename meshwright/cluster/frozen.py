"""Hash once: nouns that key caches compute their hash at first use and keep it."""

from __future__ import annotations

from dataclasses import fields
from typing import Any


class HashedOnce:
    """Base of frozen dataclasses used as cache keys: hashing a whole mesh anew would cost more than the lookup.

    Subclasses must set `__hash__ = HashedOnce.__hash__` themselves, because `@dataclass(frozen=True)` would
    otherwise generate one that walks every field.
    """

    __slots__ = ("_hash", "_twin")
    _hash: int
    _twin: HashedOnce

    def __hash__(self) -> int:
        try:
            return self._hash
        except AttributeError:
            value = hash(tuple(getattr(self, field.name) for field in fields(self)))  # type: ignore[arg-type]
            object.__setattr__(self, "_hash", value)
            return value

    def equal_once(self, other: object) -> bool:
        """Field by field, but an equal object is remembered: a cache compares its key at every lookup.

        For `__eq__ = HashedOnce.equal_once` in subclasses that are deep.
        """
        if self is other or getattr(self, "_twin", None) is other or getattr(other, "_twin", None) is self:
            return True
        if type(self) is not type(other) or hash(self) != hash(other):
            return False
        names = [field.name for field in fields(self)]  # type: ignore[arg-type]
        same = all(getattr(self, name) == getattr(other, name) for name in names)
        if same:
            object.__setattr__(self, "_twin", other)
        return same

    def __getstate__(self) -> list[Any]:
        # The hash of text differs between processes, so it must not travel with a pickle.
        return [getattr(self, field.name) for field in fields(self)]  # type: ignore[arg-type]

    def __setstate__(self, state: list[Any]) -> None:
        for field, value in zip(fields(self), state, strict=True):  # type: ignore[arg-type]
            object.__setattr__(self, field.name, value)
