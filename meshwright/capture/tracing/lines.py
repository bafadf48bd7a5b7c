"""Lines of the model's own code, as error messages name them."""

from __future__ import annotations

import contextlib
import re
import traceback
from pathlib import Path

import torch

LIBRARIES = (str(Path(torch.__file__).parent), str(Path(__file__).parent), contextlib.__file__)
UNKNOWN_LINE = "an unknown line"


def own_frame(frames: traceback.StackSummary) -> traceback.FrameSummary | None:
    """The innermost frame that is neither torch's nor ours."""
    return next((frame for frame in reversed(frames) if not frame.filename.startswith((*LIBRARIES, "<"))), None)


def own_line(frames: traceback.StackSummary) -> str:
    """The innermost line that is neither torch's nor ours."""
    frame = own_frame(frames)
    return UNKNOWN_LINE if frame is None else f"{place_of(frame)} `{(frame.line or '').strip()}`"


def line_here() -> str:
    """The line that led to this call."""
    return own_line(traceback.extract_stack(limit=40))


def place_of(frame: traceback.FrameSummary) -> str:
    """`package/module.py:12`: enough of the path to find it, and the same on another machine."""
    return f"{Path(*Path(frame.filename).parts[-3:])}:{frame.lineno}"


def traced_line(stack: str) -> str:
    """The same of a trace that export wrote down as text; `, at ...`, or nothing where it knows none."""
    found = re.findall(r'File "([^"]+)", line (\d+), in [^\n]*\n\s*([^\n]*)', stack)
    frames = [traceback.FrameSummary(file, int(number), "", line=line) for file, number, line in found]
    line = own_line(traceback.StackSummary.from_list(frames))
    return "" if line == UNKNOWN_LINE else f", at {line}"
