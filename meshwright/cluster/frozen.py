"""What frozen nouns of clusters share: their hash, computed at first use and kept; their plain form, as JSON has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Self

from meshwright.errors import ClusterError


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


class AsJson:
    """Base of nouns that are written as plain dicts and lists, and checked when they are read."""

    __slots__ = ()

    def to_json(self) -> dict[str, Any]:
        import msgspec

        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Self:
        import msgspec

        try:
            found = msgspec.convert(plain, cls, strict=False)
        except msgspec.ValidationError as error:
            name = cls.__name__
            raise ClusterError(f"a {name.lower()} in JSON: {error}", f"what {name}.to_json gives") from error
        found.verify()
        return found

    def verify(self) -> None:
        """Raises ClusterError unless it makes sense."""
        raise NotImplementedError
