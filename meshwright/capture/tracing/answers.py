"""Branches that ask for a tensor's value, answered with False, and said so.

Layers that are dropped at random and checks for rare inputs ask `bool(tensor)`. The Program is the model on the
branch not taken; a warning names each line that asked.
"""

from __future__ import annotations

import re
import traceback
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

LIBRARIES = (str(Path(torch.__file__).parent), str(Path(__file__).parent))
UNKNOWN_LINE = "an unknown line"


class AnswerFalse(TorchFunctionMode):
    """`warnings`: one per line of the model that asked, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.warnings: dict[str, None] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.__bool__ or (func is Tensor.item and args[0].dtype is torch.bool):
            line = own_line(traceback.extract_stack(limit=40))
            self.warnings[f"a question about tensor values is always answered with False: {line}"] = None
            return False
        return func(*args, **(kwargs or {}))


def own_line(frames: traceback.StackSummary) -> str:
    """The innermost line that is neither torch's nor ours."""
    for frame in reversed(frames):
        if not frame.filename.startswith((*LIBRARIES, "<")):
            return f"{Path(*Path(frame.filename).parts[-3:])}:{frame.lineno} `{(frame.line or '').strip()}`"
    return UNKNOWN_LINE


def traced_line(stack: str) -> str:
    """The same of a trace that export wrote down as text; `, at ...`, or nothing where it knows none."""
    found = re.findall(r'File "([^"]+)", line (\d+), in [^\n]*\n\s*([^\n]*)', stack)
    frames = [traceback.FrameSummary(file, int(number), "", line=line) for file, number, line in found]
    line = own_line(traceback.StackSummary.from_list(frames))
    return "" if line == UNKNOWN_LINE else f", at {line}"
