"""The sweep looks at all the memory that a sharding wants first, then at less; where nothing fits, at more again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from meshwright.planner.effort import ANY_BYTES
from meshwright.planner.search import shard_then_remat as sweep


@pytest.mark.parametrize(
    ("peaks", "rooms"), [((900, 256), [ANY_BYTES, 300, 160, 202, 227, 241]), ((120,), [ANY_BYTES])]
)
def test_budgets_fall_from_all_there_is(
    peaks: tuple[int, ...], rooms: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def search(candidates: Any, room: int, limit_s: float, exactly: bool, hard: bool, charge: Any) -> Any:
        asked.append(room)
        if len(asked) > len(peaks):
            return SimpleNamespace(best=None)
        return SimpleNamespace(best=(SimpleNamespace(peak_bytes=peaks[len(asked) - 1]), None))

    monkeypatch.setattr(sweep, "search", search)
    slow = SimpleNamespace(predicted=SimpleNamespace(step_s=1.0))
    found = sweep.sweep_budgets([], 100, lambda chain, shardings: None, slow, exactly=False)  # type: ignore[arg-type]
    assert found is slow
    assert asked == rooms
