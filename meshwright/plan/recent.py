"""The Programs that were planned last in this process: `plan.report` draws their layers without capturing again."""

from __future__ import annotations

from meshwright.caches import CACHES
from meshwright.capture.program import Program

MOST = 2

_programs: dict[str, Program] = CACHES.own({})


def remember(fingerprint: str, program: Program) -> None:
    _programs.pop(fingerprint, None)
    _programs[fingerprint] = program
    while len(_programs) > MOST:
        del _programs[next(iter(_programs))]


def recent(fingerprint: str, batch: int) -> Program | None:
    """At this batch; None where it was not among the last."""
    found = _programs.get(fingerprint)
    return None if found is None else found if found.batch == batch else found.at_batch(batch)
