"""Questions about a tensor's value (`if tensor:`), which a captured forward cannot answer from its data.

Some have one answer whatever the data is: a uniform draw is never below zero, so a layer that is dropped with
probability 0 never is. Some only guard: the branch does nothing but raise, and a step that would have raised is none
that is trained. All others are refused with their line, unless the user allows that line and says its answer.
"""

from __future__ import annotations

import ast
import linecache
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from meshwright.capture.tracing.lines import UNKNOWN_LINE, own_frame, place_of
from meshwright.capture.tracing.swallowed import noted
from meshwright.errors import CaptureError, ModelError

_DRAWS = frozenset({"rand", "rand_like"})
_BELOW: dict[str, Callable[[float], bool | None]] = {
    "lt": lambda bound: True if bound >= 1 else False if bound <= 0 else None,
    "le": lambda bound: True if bound >= 1 else False if bound < 0 else None,
}
_BELOW |= {"gt": lambda bound: _turned(_BELOW["le"](bound)), "ge": lambda bound: _turned(_BELOW["lt"](bound))}
"""Whether a number of [0, 1) compares so with a bound; None where that depends on the number."""


def _turned(answer: bool | None) -> bool | None:
    return None if answer is None else not answer


@dataclass(slots=True)
class Questions:
    """allow: `file.py:12` or `file.py:12=True`. answered: those that were asked, with the answer given.

    checks: lines that only raise, and are left out.
    """

    allow: tuple[str, ...] = ()
    answered: dict[str, None] = field(default_factory=dict)
    checks: dict[str, None] = field(default_factory=dict)
    drawn: dict[int, Tensor] = field(default_factory=dict)
    known: dict[int, tuple[Tensor, bool]] = field(default_factory=dict)

    def note(self, name: str, args: tuple[Any, ...], result: Any) -> None:
        """Remember uniform draws, and comparisons of them that have one answer."""
        if name in _DRAWS and isinstance(result, Tensor):
            self.drawn[id(result)] = result
        compare = _BELOW.get(name.strip("_"))
        if compare and len(args) == 2 and id(args[0]) in self.drawn and isinstance(args[1], int | float):
            answer = compare(args[1])
            if answer is not None:
                self.known[id(result)] = (result, answer)

    def answer(self, asked: Tensor) -> bool:
        """Raises CaptureError where the answer depends on the data and the line is not allowed."""
        if id(asked) in self.known:
            return self.known[id(asked)][1]
        frame = own_frame(traceback.extract_stack(limit=40))
        place = UNKNOWN_LINE if frame is None else place_of(frame)
        text = "" if frame is None else f" `{(frame.line or '').strip()}`"
        for entry in self.allow:
            where, _, said = entry.partition("=")
            if place == where or place.endswith(f"/{where}"):
                self.answered[f"{place}={said or 'False'}"] = None
                return said == "True"
        guarded = None if frame is None else _guard(frame)
        if guarded is not None:
            self.checks[f"{place}{text} is left out: it only raises"] = None
            return guarded
        short = place.rpartition("/")[2]
        refusal = CaptureError(
            f"a Python branch asks for a tensor's value, at {place}{text}",
            "a forward whose Python code follows from shapes and settings alone",
            f"choose with `torch.where`; or, where one answer is right in every step, give it: allow='{short}=False' "
            f"or '{short}=True' (--allow on the command line)",
        )
        raise noted(refusal)


def check_allow(allow: str | Iterable[str]) -> tuple[str, ...]:
    entries = (allow,) if isinstance(allow, str) else tuple(allow)
    for entry in entries:
        where, _, said = entry.partition("=") if isinstance(entry, str) else ("", "", "")
        if not where.rpartition(":")[2].isdigit() or said not in ("", "True", "False"):
            raise ModelError(f"allow={entry!r}", "`file.py:12`, `file.py:12=True` or `file.py:12=False`", "correct it")
    return entries


def _guard(frame: traceback.FrameSummary) -> bool | None:
    """The answer that passes an `assert`, a `torch._check`, or an `if` that does nothing but raise; None of any other
    line."""
    try:
        tree = ast.parse("".join(linecache.getlines(frame.filename)))
    except SyntaxError:
        return None
    line = frame.lineno or 0
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert) and node.lineno <= line <= (node.end_lineno or 0):
            return _wanted(node.test, True)
        if isinstance(node, ast.If) and node.test.lineno <= line <= (node.test.end_lineno or 0):
            raises = all(isinstance(statement, ast.Raise) for statement in node.body)
            return _wanted(node.test, False) if raises and not node.orelse else None
        if isinstance(node, ast.Expr) and node.lineno <= line <= (node.end_lineno or 0) and _is_check(node.value):
            return True
    return None


def _is_check(value: ast.expr) -> bool:
    """`torch._check(...)` and its kin: they raise where what is asked is not true."""
    called = value.func if isinstance(value, ast.Call) else None
    return (
        isinstance(called, ast.Attribute) and called.attr.startswith("_check") and ast.unparse(called.value) == "torch"
    )


def _wanted(test: ast.expr, outcome: bool) -> bool | None:
    """What every part of a condition must be for the whole to be `outcome`, where it is the same for all parts."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _wanted(test.operand, not outcome)
    if isinstance(test, ast.BoolOp):
        parts = {_wanted(part, outcome) for part in test.values}
        return parts.pop() if len(parts) == 1 else None
    direct = isinstance(test, ast.Compare | ast.Name | ast.Attribute | ast.Subscript)
    return outcome if direct or (isinstance(test, ast.Call) and _is_direct(test)) else None


def _is_direct(call: ast.Call) -> bool:
    """`x.any()`, `torch.isnan(x).any().item()`, `bool(x)`: the call's result is what was asked for."""
    if isinstance(call.func, ast.Name):
        return call.func.id == "bool"
    return isinstance(call.func, ast.Attribute) and call.func.attr in ("any", "all", "item", "bool")
