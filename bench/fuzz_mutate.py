"""Mutants of texts: bytes that change, values that are of another kind, nesting, digits that are none."""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random
from typing import Any

VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 3, 7, 255, 2**31, 2**63, -(2**63) - 1, 2**64, 10**30, 10**400, 0.5, -0.0, 1e-320,
    1e308, -1e308, 1e18, float("inf"), float("-inf"), float("nan"), "", " ", "0", "-1", "٣", "²", "1_000", "0x10",
    "1e5", "nan", "inf", "\0", "\ud800", "é" * 300, "a" * 5000, "../../etc/passwd", "/dev/zero", "S(0)", "[S(0), R]",
    "fp32", "float32", "bfloat16", [], {}, [[]], [None], {"": None}, [0, 0], [1, 2, 3], ["x"], {"a": {"b": {}}},
)  # fmt: skip
"""What stands in the place of a value."""

PIECES: tuple[bytes, ...] = (
    b"\xff", b"\xc3\x28", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\0", b"\x1f\x8b", b"[" * 3000, b'{"a":' * 3000,
    b"[[" * 1500, b"(" * 2000, b"9" * 5000, b"1e999", b"-", b"NaN", b"Infinity", b"null", "٣".encode(), "²".encode(),
    "½".encode(), b"\\ud800", b"\\u0000", b'"', b"'", b"=", b",", b":", b"#", b"\n", b"\r", b"a.b.c", b"a=1\n",
    b"[[x]]\n", b"1:2", b"?", b"&", b"%", b"inf", b"nan", b"0x1p3", b"1__0", b"%s", b"{0}", b"..", b"/", b"\\",
)  # fmt: skip


def mutant(seeds: Sequence[bytes], random: Random) -> bytes:
    """One of the seeds, changed in one way or in several."""
    text = random.choice(seeds)
    if random.random() < 0.6:
        changed = _values(text, random)
        if changed is not None:
            text = changed
            if random.random() < 0.8:
                return text
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        text = random.choice((_flip, _insert, _delete, _repeat, _splice, _digits))(text, seeds, random)
    return text


def _values(text: bytes, random: Random) -> bytes | None:
    """JSON with values that are others; None where it is none."""
    try:
        data = json.loads(text)
    except ValueError:
        return None
    for _ in range(random.choice((1, 1, 2, 5))):
        data = _replaced(data, random)
    return json.dumps(data).encode()


def _replaced(data: Any, random: Random) -> Any:
    if isinstance(data, dict | list) and data and random.random() < 0.93:
        keys: Sequence[Any] = list(data) if isinstance(data, dict) else range(len(data))
        key = random.choice(keys)
        copy = dict(data) if isinstance(data, dict) else list(data)
        way = random.random()
        if way < 0.06:
            del copy[key]
        elif way < 0.09 and isinstance(copy, dict):
            copy[random.choice(("", "x", "schema", "Name", "\ud800"))] = copy.pop(key)
        elif way < 0.12 and isinstance(copy, list):
            copy.insert(key, random.choice(copy))
        else:
            copy[key] = _replaced(copy[key], random)
        return copy
    if isinstance(data, int | float) and abs(data) < 1e300 and not isinstance(data, bool) and random.random() < 0.4:
        return random.choice((data + 1, data - 1, -data, data * 2, data * 10**9, float(data), str(data)))
    return random.choice(VALUES)


def _place(text: bytes, random: Random) -> int:
    return random.randrange(len(text) + 1)


def _flip(text: bytes, seeds: Sequence[bytes], random: Random) -> bytes:
    if not text:
        return bytes([random.randrange(256)])
    place = random.randrange(len(text))
    return text[:place] + bytes([random.randrange(256)]) + text[place + 1 :]


def _insert(text: bytes, seeds: Sequence[bytes], random: Random) -> bytes:
    place = _place(text, random)
    return text[:place] + random.choice(PIECES) + text[place:]


def _delete(text: bytes, seeds: Sequence[bytes], random: Random) -> bytes:
    place = _place(text, random)
    return text[:place] + text[place + random.choice((1, 1, 2, 5, 20, 200, len(text))) :]


def _repeat(text: bytes, seeds: Sequence[bytes], random: Random) -> bytes:
    place, length = _place(text, random), random.choice((1, 4, 16, 100))
    return text[:place] + text[place : place + length] * random.choice((2, 3, 50)) + text[place + length :]


def _splice(text: bytes, seeds: Sequence[bytes], random: Random) -> bytes:
    other = random.choice(seeds)
    return text[: _place(text, random)] + other[_place(other, random) :]


def _digits(text: bytes, seeds: Sequence[bytes], random: Random) -> bytes:
    """A number in the place of another."""
    places = [place for place, byte in enumerate(text) if 48 <= byte <= 57]
    if not places:
        return _insert(text, seeds, random)
    place = random.choice(places)
    number = random.choice(
        (b"0", b"-1", b"1e30", b"1e-30", b"99999999999999999999", "٣".encode(), b"1e999", b"0.1", b"")
    )
    return text[:place] + number + text[place + 1 :]
