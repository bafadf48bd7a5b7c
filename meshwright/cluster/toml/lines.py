"""Where a field stands in a TOML text: the parser does not say, and a message without a line helps little."""

from __future__ import annotations

import re

from meshwright.errors import ClusterError

_HEADER = re.compile(r"\s*(\[\[?)\s*([^\]]+?)\s*\]\]?\s*(?:#.*)?$")
_KEY = re.compile(r"\s*([A-Za-z0-9_.\-\"]+)\s*=")


class Where:
    """Finds lines by field path: `level.pod.bandwidth`, `host[1].uplink.latency`."""

    def __init__(self, text: str, file: str) -> None:
        self.file = file
        self.lines = _index(text)

    def line(self, path: str) -> int | None:
        """The line of the field, or of the nearest table around it that the text has."""
        while path:
            if path in self.lines:
                return self.lines[path]
            # From `group[1].size` to `group[1]`, and to `group`, which an array of inline tables has one line for.
            path = path[: path.rindex("[")] if path.endswith("]") else path.rpartition(".")[0]
        return None

    def error(self, path: str, fault: str, expected: str, todo: str = "") -> ClusterError:
        line = self.line(path)
        place = f"{self.file}, line {line}" if line else self.file
        return ClusterError(f"{place}: {path} {fault}" if path else f"{place}: {fault}", expected, todo)


def _index(text: str) -> dict[str, int]:
    found: dict[str, int] = {}
    counts: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            table = header[2].replace('"', "")
            if header[1] == "[[":
                found.setdefault(table, number)
                counts[table] = counts.get(table, -1) + 1
                table = f"{table}[{counts[table]}]"
            found.setdefault(table, number)
            found.setdefault(table.partition(".")[0], number)
        elif key := _KEY.match(line):
            name = key[1].replace('"', "")
            found.setdefault(f"{table}.{name}" if table else name, number)
    return found
