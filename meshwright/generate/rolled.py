"""Lines of generated text that repeat with growing numbers, as loops.

`roll` finds runs of blocks that are the same but for numbers which all grow by the same step from one repetition to the
next. `python_loops` writes such runs as `for` statements, in which only numbers inside quotes change (as f-strings);
`comment_loops` writes them for reading.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from textwrap import indent

NUMBER = re.compile(r"(\d+)")
QUOTED = re.compile(r'"[^"]*"')
LEAST = 3
"""Repetitions that are worth a loop."""
MOST_BLOCKS = 64
"""Of one repetition."""


@dataclass(frozen=True, slots=True)
class Loop:
    """first, step: of the number that changes, over `count` repetitions; step 0 where none does. body: its blocks, with
    `changes` marking in each which of its numbers change."""

    first: int
    step: int
    count: int
    body: tuple[str, ...]
    changes: tuple[tuple[int, ...], ...]

    def text(self, variable: str) -> list[str]:
        """The blocks with `{variable}`, or `{variable + 1}`, for numbers that change."""
        return [self._block(block, marked, variable) for block, marked in zip(self.body, self.changes, strict=True)]

    def _block(self, block: str, marked: tuple[int, ...], variable: str) -> str:
        parts = NUMBER.split(block)
        for place in marked:
            more = int(parts[place]) - self.first
            shift = f" {'+' if more > 0 else '-'} {abs(more)}" if more else ""
            parts[place] = f"{{{variable}{shift}}}"
        return "".join(parts)


def roll(
    blocks: Sequence[str], allowed: Callable[[str, int], bool] = lambda block, place: True, inner: bool = False
) -> list[str | Loop]:
    """Greedily, from the first block on, the repetition that covers most; `inner`: the shortest one. allowed: whether
    a number of a block may change, by its place among the block's parts."""
    found: list[str | Loop] = []
    at = 0
    while at < len(blocks):
        best, covered = None, 0
        for period in range(1, min(MOST_BLOCKS, (len(blocks) - at) // LEAST) + 1):
            loop = _loop(blocks, at, period, allowed)
            if loop is not None and loop.count * period > covered:
                best, covered = loop, loop.count * period
                if inner:
                    break
        found.append(blocks[at] if best is None else best)
        at += covered or 1
    return found


def _loop(blocks: Sequence[str], at: int, period: int, allowed: Callable[[str, int], bool]) -> Loop | None:
    body = tuple(blocks[at : at + period])
    split = [NUMBER.split(block) for block in body]
    steps = [_steps(parts, NUMBER.split(blocks[at + period + n])) for n, parts in enumerate(split)]
    if any(one is None for one in steps):
        return None
    changes = tuple(tuple(place for place, step in (one or {}).items() if step) for one in steps)
    distinct = {step for one in steps for step in (one or {}).values() if step}
    if len(distinct) > 1 or not all(allowed(block, p) for block, one in zip(body, changes, strict=True) for p in one):
        return None
    step = next(iter(distinct), 0)
    count = 1
    while at + (count + 1) * period <= len(blocks) and all(
        blocks[at + count * period + n] == _moved(parts, changes[n], step * count) for n, parts in enumerate(split)
    ):
        count += 1
    if count < LEAST:
        return None
    numbers = [int(split[n][place]) for n, one in enumerate(changes) for place in one]
    return Loop(min(numbers, default=0), step, count, body, changes)


def _steps(parts: list[str], after: list[str]) -> dict[int, int] | None:
    """By how much each number grows; None where the text around them differs."""
    if len(parts) != len(after) or parts[::2] != after[::2]:
        return None
    return {place: int(after[place]) - int(parts[place]) for place in range(1, len(parts), 2)}


def _moved(parts: list[str], places: Sequence[int], by: int) -> str:
    moved = list(parts)
    for place in places:
        moved[place] = str(int(parts[place]) + by)
    return "".join(moved)


def python_loops(blocks: Sequence[str], wrapped: Callable[[str, str], list[str]], indent_by: str) -> list[str]:
    """Statements, each on one line or several, with repeated ones in `for` loops. wrapped: lays a block out, given
    what stands before its lines."""

    def allowed(block: str, place: int) -> bool:
        start = len("".join(NUMBER.split(block)[:place]))
        plain = "{" not in block and "}" not in block
        return plain and any(one.start() < start < one.end() for one in QUOTED.finditer(block))

    lines: list[str] = []
    for item in roll(blocks, allowed):
        if isinstance(item, str):
            lines += wrapped(item, indent_by)
            continue
        variable = "i" if item.step else "_"
        last = item.first + item.step * item.count
        numbers = f"range({item.first}, {last}, {item.step})" if item.step not in (0, 1) else f"range({item.count})"
        if item.step == 1 and item.first:
            numbers = f"range({item.first}, {last})"
        lines.append(f"{indent_by}for {variable} in {numbers}:")
        for block in item.text("i"):
            marked = QUOTED.sub(lambda one: f"f{one[0]}" if "{" in one[0] else one[0], block)
            lines += wrapped(marked, indent_by + "    ")
    return lines


def comment_loops(lines: Sequence[str], variables: Sequence[str] = ("i", "m", "n")) -> list[str]:
    """As `for i = 0 to 31:` and the body indented; loops of loops get the next variable."""
    blocks = list(lines)
    for variable in variables:
        rolled = roll(blocks, inner=True)
        blocks = [item if isinstance(item, str) else _comment(item, variable) for item in rolled]
        if len(blocks) == len(rolled) and all(isinstance(item, str) for item in rolled):
            break
    return [line for block in blocks for line in block.splitlines()]


def _comment(loop: Loop, variable: str) -> str:
    if not loop.step:
        return f"{loop.count} times:\n" + indent("\n".join(loop.body), "  ")
    last = loop.first + loop.step * (loop.count - 1)
    down = f" by {loop.step}" if loop.step not in (1, -1) else ""
    return f"for {variable} = {loop.first} to {last}{down}:\n" + indent("\n".join(loop.text(variable)), "  ")
