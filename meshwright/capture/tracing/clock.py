"""Forwards that read the clock: what they compute with it would stay as it was when they were captured.

`time.time` and its kin, and `datetime.now`, are watched while the model is traced. A forward that asked is traced again
at another time: one that only prints or logs gives the same Program.
"""

from __future__ import annotations

import datetime
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from threading import get_ident
from types import ModuleType
from typing import Any

from meshwright.capture.tracing.traps import stand_ins
from meshwright.errors import CaptureError

CLOCKS = (
    "time", "perf_counter", "monotonic", "process_time", "thread_time", "time_ns", "perf_counter_ns", "monotonic_ns",
    "process_time_ns", "thread_time_ns",
)  # fmt: skip
DATES = {"localtime": 0, "gmtime": 0, "ctime": 0, "asctime": 0, "strftime": 1}
"""Functions that take the time of now where they are not given one, with the argument it would be."""
LATER_S = 98_765.4321
"""How much later the second trace is."""
_OURS = frozenset({"torch", "meshwright", "sympy", "numpy", "transformers", *sys.stdlib_module_names}) - {"__main__"}


@contextmanager
def watched_clock(modules: Iterable[ModuleType], later_s: float = 0.0) -> Iterator[list[str]]:
    """Yields the clocks that modules of users read. modules: of the model's own code, which may hold clocks under names
    of their own. later_s: added to what they then read."""
    asked: list[str] = []
    made: dict[tuple[Any, str], Any] = {
        (time, name): _watched(name, getattr(time, name), asked, later_s) for name in CLOCKS
    }
    for name, at in DATES.items():
        made[time, name] = _written(name, getattr(time, name), at, asked, later_s)
    made[datetime, "datetime"] = _dated(asked, datetime.timedelta(seconds=later_s))
    with stand_ins(made, modules):
        yield asked


def _watched(name: str, clock: Callable[[], Any], asked: list[str], later_s: float) -> Callable[[], Any]:
    thread = get_ident()

    def read() -> Any:
        if get_ident() != thread or _is_ours(sys._getframe(1).f_globals):
            return clock()
        asked.append(f"time.{name}")
        return clock() + (int(later_s * 1e9) if name.endswith("_ns") else later_s)

    return read


def _written(name: str, clock: Callable[..., Any], at: int, asked: list[str], later_s: float) -> Callable[..., Any]:
    thread, seconds, fields = get_ident(), time.time, time.localtime

    def write(*args: Any) -> Any:
        if get_ident() != thread or _is_ours(sys._getframe(1).f_globals) or args[at : at + 1] not in ((), (None,)):
            return clock(*args)
        asked.append(f"time.{name}")
        now = seconds() + later_s
        return clock(*args[:at], fields(now) if name in ("asctime", "strftime") else now)

    return write


def _dated(asked: list[str], later: datetime.timedelta) -> type[datetime.datetime]:
    thread = get_ident()

    class Watched(datetime.datetime):
        """`datetime.datetime`, whose dates of today are watched."""

        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Any:
            return _later(super().now(tz), sys._getframe(1).f_globals, "now")

        @classmethod
        def today(cls) -> Any:
            return _later(super().today(), sys._getframe(1).f_globals, "today")

    def _later(found: datetime.datetime, caller: dict[str, Any], name: str) -> datetime.datetime:
        if get_ident() != thread or _is_ours(caller):
            return found
        asked.append(f"datetime.{name}")
        return found + later

    Watched.__name__ = Watched.__qualname__ = "datetime"
    return Watched


def _is_ours(caller: dict[str, Any]) -> bool:
    return str(caller.get("__name__", "")).partition(".")[0] in _OURS


def refused_clock(asked: list[str]) -> CaptureError:
    return CaptureError(
        f"the forward computes with {', '.join(dict.fromkeys(asked))}, which would be the same in every step",
        "a forward that computes the same at any time",
        "read the clock outside the model, and pass it as a tensor of the batch",
    )
