"""Forwards that read the clock: what they compute with it would stay as it was when they were captured.

`time.time` and its kin are watched while the model is traced. A forward that asked is traced again at another time: one
that only prints or logs gives the same Program.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from meshwright.capture.tracing.traps import replaced
from meshwright.errors import CaptureError

CLOCKS = ("time", "perf_counter", "monotonic", "process_time", "time_ns", "perf_counter_ns", "monotonic_ns")
LATER_S = 98_765.4321
"""How much later the second trace is."""
_OURS = frozenset({"torch", "meshwright", "sympy", "numpy", "transformers", *sys.stdlib_module_names}) - {"__main__"}


@contextmanager
def watched_clock(later_s: float = 0.0) -> Iterator[list[str]]:
    """Yields the clocks that modules of users read by name. later_s: added to what they then read."""
    asked: list[str] = []
    with ExitStack() as stack:
        for name in CLOCKS:
            stack.enter_context(replaced(time, name, _watched(name, getattr(time, name), asked, later_s)))
        yield asked


def _watched(name: str, clock: Callable[[], Any], asked: list[str], later_s: float) -> Callable[[], Any]:
    def read() -> Any:
        caller = str(sys._getframe(1).f_globals.get("__name__", ""))
        if caller.partition(".")[0] in _OURS:
            return clock()
        asked.append(f"time.{name}")
        return clock() + (int(later_s * 1e9) if name.endswith("_ns") else later_s)

    return read


def refused_clock(asked: list[str]) -> CaptureError:
    return CaptureError(
        f"the forward computes with {', '.join(dict.fromkeys(asked))}, which would be the same in every step",
        "a forward that computes the same at any time",
        "read the clock outside the model, and pass it as a tensor of the batch",
    )
