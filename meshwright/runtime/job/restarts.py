"""`train --max-restarts`: the plan that runs next, where ranks are lost and where they may come back.

A job that has lost ranks goes on with those that remain, under a plan for them; the plan for one rank less is made
before anything starts. Once the smaller job has saved a checkpoint of its own, or has run for `GROW_S`, it is asked to
save and grows back to its full size. A full-size job that loses ranks again before it has saved one stays small.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from meshwright.errors import MeshwrightError
from meshwright.runtime.state.folder import latest

if TYPE_CHECKING:
    from meshwright.plan import Plan

GROW_S = 60.0
"""How long a smaller job runs, at most, before it grows back; it may save seldom."""
LOOK_S = 0.5
"""How often the folder of checkpoints is looked at."""


class Restarts:
    """The plans of a job that may lose ranks.

    full: the plan for all of its ranks.
    make: a plan for so many ranks; None where the job cannot be planned again.
    """

    def __init__(self, full: Plan, make: Callable[[int], Plan] | None, folder: Path) -> None:
        self.full, self.plan, self.folder = full, full, folder
        self._make = make
        self._made: dict[int, Plan] = {full.world_size: full}
        self._grown = self._stays = False
        self._begun_s = self._looked_s = 0.0
        self._found: Path | None = None

    def prepare(self) -> None:
        """Make the plan for one rank less, before the job starts."""
        if self.full.world_size > 1:
            self._planned(self.full.world_size - 1)

    def begin(self) -> None:
        """The job starts under `plan`."""
        self._begun_s = self._looked_s = time.monotonic()
        self._found = latest(self.folder)

    def lose(self, ranks: int) -> Plan:
        """What runs next without so many ranks: a plan for the rest where there is one, else the same again."""
        self._stays = self._grown and latest(self.folder) == self._found
        self.plan, self._grown = self._planned(max(1, self.plan.world_size - ranks)) or self.plan, False
        return self.plan

    def grow(self) -> Plan:
        """What runs next with all ranks."""
        self.plan, self._grown = self.full, True
        return self.plan

    def may_grow(self) -> bool:
        """Whether the job that runs is smaller than it was, and has gone on for long enough."""
        now_s = time.monotonic()
        if self.plan is self.full or self._stays or now_s - self._looked_s < LOOK_S:
            return False
        self._looked_s = now_s
        return now_s - self._begun_s > GROW_S or latest(self.folder) != self._found

    def _planned(self, world: int) -> Plan | None:
        if world not in self._made and self._make is not None:
            with suppress(MeshwrightError):
                self._made[world] = self._make(world)
        return self._made.get(world)
