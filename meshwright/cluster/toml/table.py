"""A table of a TOML file, read with line and field in every complaint."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from meshwright.cluster.toml.lines import Where
from meshwright.errors import did_you_mean

Convert = Callable[[object], float]

_LEAST_FIGURE, _MOST_FIGURE = 1e-9, 1e30  # beyond these, seconds would be infinite
_LEADING = re.compile(r"\s*([0-9.]+)")
_MOST = 1_000_000  # a larger count is a slip, and would only be noticed when memory runs out


@dataclass(frozen=True, slots=True)
class Plausible:
    """Bounds that no real device or link is beyond, and the units in which people write such a figure."""

    least: str
    most: str
    units: tuple[str, ...]

    def fault(self, value: object, number: float, convert: Convert) -> tuple[str, str] | None:
        """(what was expected, what was probably meant) where a figure is beyond the bounds."""
        least, most = convert(self.least), convert(self.most)
        if least <= number <= most:
            return None
        written = _LEADING.match(str(value))
        meant = [f"{written[1].removesuffix('.0')}{unit}" for unit in self.units] if written else []
        meant = [text for text in meant if least <= convert(text) <= most]
        return f"from {self.least} to {self.most}", f'probably "{meant[0]}" was meant' if meant else ""


class Table:
    """A table of the file, with typed access that raises with line and field."""

    def __init__(self, data: object, path: str, where: Where, known: tuple[str, ...] | None = None) -> None:
        if not isinstance(data, dict):
            raise where.error(path, f"is {data!r}", "a table")
        self.data: dict[str, Any] = data
        self.path, self.where = path, where
        for key in data if known is not None else ():
            if known is not None and key not in known:
                raise where.error(
                    self.field(key), "is not a field", f"one of {', '.join(known)}", did_you_mean(key, known)
                )

    def field(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def __contains__(self, key: str) -> bool:
        return key in self.data

    def need(self, key: str) -> Any:
        if key not in self.data:
            raise self.where.error(self.field(key), "is missing", "a value", f"add `{key} = ...`")
        return self.data[key]

    def child(self, key: str, known: tuple[str, ...] | None = None) -> Table:
        return Table(self.need(key), self.field(key), self.where, known)

    def keys(self, key: str) -> list[str]:
        names = list(self.child(key).data)
        if not names:
            raise self.where.error(self.field(key), "is empty", "at least one entry")
        return names

    def text(self, key: str, default: str) -> str:
        value = self.data.get(key, default)
        if not isinstance(value, str):
            raise self.where.error(self.field(key), f"is {value!r}", "text")
        return value

    def one_of(self, key: str, options: tuple[str, ...], default: str | None = None) -> str:
        value = self.need(key) if default is None else self.data.get(key, default)
        if value not in options:
            raise self.where.error(self.field(key), f"is {value!r}", f"one of {', '.join(options)}")
        return str(value)

    def figure(
        self, key: str, convert: Convert, default: float | None = None, *, positive: bool = False,
        plausible: Plausible | None = None,
    ) -> float:  # fmt: skip
        """plausible: bounds of a figure that the file gives; a default is known to be right."""
        value = self.need(key) if default is None else self.data.get(key, default)
        try:
            number = convert(value)
        except ValueError as error:
            raise self.where.error(self.field(key), f"is {value!r}", str(error)) from None
        least = _LEAST_FIGURE if positive else 0.0
        if not least <= number <= _MOST_FIGURE:
            expected = f"a positive figure, from {least:g}" if positive else "0 or more, up"
            raise self.where.error(self.field(key), f"is {value!r}", f"{expected} to {_MOST_FIGURE:g}")
        if plausible and key in self.data and (fault := plausible.fault(value, number, convert)):
            raise self.where.error(self.field(key), f"is {value!r}", *fault)
        return number

    def whole(self, key: str, default: int | None = None) -> int:
        value = self.need(key) if default is None else self.data.get(key, default)
        return self.checked_whole(key, value)

    def checked_whole(self, key: str, value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _MOST:
            raise self.where.error(self.field(key), f"is {value!r}", f"a whole number from 1 to {_MOST}")
        return value

    def tables(self, key: str, known: tuple[str, ...]) -> list[Table]:
        """The tables of an array of tables, `[[key]]`."""
        entries = self.need(key)
        if not isinstance(entries, list) or not entries:
            raise self.where.error(self.field(key), f"is {entries!r}", f"one or more [[{self.field(key)}]] tables")
        return [Table(entry, f"{self.field(key)}[{i}]", self.where, known) for i, entry in enumerate(entries)]
