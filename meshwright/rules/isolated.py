"""Ops that nobody knows run in another process first.

On tensors that we made up, a kernel that does not check its shapes may write outside of its memory. What then ends is
a copy of this process, or of a helper where copies of this one cannot compute gradients; the op counts as one that runs
on none of our making.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from meshwright.rules.copied import UNABLE, Answer, EndedError, in_copy
from meshwright.rules.fresh import in_helper


def isolated(function: Callable[[Any], Any], given: Any) -> Any:
    """`function(given)`, never computed in this process; what it returns is pickled. Raises what it raises where that
    is ours, EndedError where there is no answer."""
    answer: Answer = in_copy(function, given) if hasattr(os, "fork") else (UNABLE, None)
    kind, found = in_helper(function, given) if answer[0] == UNABLE else answer
    if kind == "refused":
        error_type, parts = found
        raise error_type(*parts)
    if kind != "found":
        raise EndedError(str(found))
    return found
