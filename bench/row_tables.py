"""Tables of measurements that nobody here has seen: whatever is wrong with one, or with a row of it, has a reason."""

from __future__ import annotations

import csv
import os
from collections import Counter
from pathlib import Path

Row = dict[str, str]
WRONG = "(wrong)"
"""Where a row says what is wrong with all of it."""
SHOWN = 60
"""Characters of a cell that a reason repeats."""
LARGEST = 10**9


class Refused(Exception):  # noqa: N818
    """Why a table or a row is left out."""


def read_table(path: Path) -> list[Row]:
    """Its rows, without blanks around columns and cells; those that cannot be read as a row are marked with `WRONG`."""
    try:
        with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
            reader = csv.DictReader(file, restkey=WRONG)
            columns = [name.strip() for name in reader.fieldnames or []]
            rows = list(reader)
    except (OSError, UnicodeError, csv.Error) as error:
        raise Refused(f"{error}; expected a CSV table") from error
    if not columns:
        raise Refused("an empty file; expected a CSV table")
    if not all(map(_is_text, columns)):
        raise Refused("columns that are no text in UTF-8; expected a CSV table")
    twice = [name for name, count in Counter(columns).items() if name and count > 1]
    if twice:
        raise Refused(f"the column {twice[0]!r} twice; expected it once")
    if not rows:
        raise Refused("no rows; expected one for each measurement")
    return [_row(row) for row in rows]


def table_or_exit(path: Path) -> list[Row]:
    """Rows of a table without which there is nothing to do."""
    try:
        return read_table(path)
    except Refused as error:
        raise SystemExit(f"{path}: {error}") from error


def check_written(path: Path | None) -> None:
    """Ends at once where a result could not be written after all the work."""
    if path is None:
        return
    folder = path.parent
    if not folder.is_dir():
        raise SystemExit(f"--json {path}: no folder {folder}; expected one that is there; make it, or name another")
    if path.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
        what = "a folder" if path.is_dir() else "not writable"
        raise SystemExit(f"--json {path}: {what}; expected a file that can be written; name another")


def _is_text(cell: str) -> bool:
    return "\0" not in cell and not any("\udc80" <= one <= "\udcff" for one in cell)


def _row(cells: dict[str, str | list[str] | None]) -> Row:
    beyond = [one for one in cells.pop(WRONG, None) or [] if one.strip()]
    found = {name.strip(): (cell or "").strip() for name, cell in cells.items() if isinstance(cell, str | None)}
    if beyond:
        found[WRONG] = f"{len(beyond)} cells beyond the columns"
    elif not all(map(_is_text, found.values())):
        found[WRONG] = "no text in UTF-8"
    return found


def whole_number(name: str, text: str, least: int = 1, most: int = LARGEST) -> int:
    """The value of a cell. Raises Refused with what was expected."""
    value = _float(name, text, "a whole number")
    if not least <= value <= most or value != int(value):
        raise Refused(f"{name} is {text[:SHOWN]}, expected a whole number from {least} to {most}")
    return int(value)


def positive_number(name: str, text: str, least: float = 1e-9, most: float = 1e12) -> float:
    value = _float(name, text, "a positive number")
    if not least <= value <= most:
        raise Refused(f"{name} is {text[:SHOWN]}, expected a positive number from {least:g} to {most:g}")
    return value


def _float(name: str, text: str, expected: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise Refused(f"{name} is {text[:SHOWN]!r}, expected {expected}") from None
