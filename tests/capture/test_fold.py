"""Runs of pieces that are alike: against the definition, and of programs of thousands of pieces."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.capture.cutting import cut
from meshwright.capture.cutting.fold import Span, merge
from meshwright.capture.op import Op, Ref, TensorType, Value


def piece(kind: int, place: int) -> tuple[Op, ...]:
    """One op whose result is as wide as its kind says."""
    value = Value(f"v{place}", TensorType((kind + 1,), "float32"), True)
    return (Op("aten.relu.default", (Ref(f"v{place - 1}"),), (), (value,)),)


def plainly(kinds: Sequence[int], low: int, high: int) -> list[Span]:
    """What `merge` gives where nothing that is unlike may be joined: tried for every start, period and number."""
    best: tuple[int, int, int] | None = None
    for period in range(1, (high - low) // 2 + 1):
        for start in range(low, high - 2 * period + 1):
            repeats = 1
            while (end := start + (repeats + 1) * period) <= high and kinds[end - period : end] == kinds[
                start : start + period
            ]:
                repeats += 1
            if repeats > 1 and (best is None or repeats * period > best[1] * best[2]):
                best = start, period, repeats
    if best is None:
        return [(i, i + 1) for i in range(low, high)]
    start, period, repeats = best
    inner = [(start + i * period, start + (i + 1) * period) for i in range(repeats)]
    return plainly(kinds, low, start) + inner + plainly(kinds, start + period * repeats, high)


@given(st.lists(st.integers(0, 3), max_size=24))
@settings(deadline=None, max_examples=150)
def test_the_run_that_covers_most_ops_is_merged_first(kinds: list[int]) -> None:
    found = merge([piece(kind, place) for place, kind in enumerate(kinds)], largest=1)
    units = plainly(kinds, 0, len(kinds))
    assert found == units or max(b - a for a, b in units) > 1  # else what is unlike is joined up to the unit's size
    repeated = [span for span in units if span[1] - span[0] > 1]
    assert all(span in found for span in repeated)


def test_thousands_of_unlike_runs_are_merged() -> None:
    kinds = [place // 2 for place in range(2_400)]
    found = merge([piece(kind, place) for place, kind in enumerate(kinds)])
    assert found == [(i, i + 1) for i in range(len(kinds))]


def test_of_very_many_lifetimes_some_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skips around skips: a value for every second length."""
    count = 200
    chain = []
    for place in range(count):
        read = [Ref(f"v{place - 1}"), *([Ref(f"v{count - place}")] if place > count // 2 else [])]
        value = Value(f"v{place}", TensorType((4,), "float32"), True)
        chain.append(Op("aten.add.Tensor", tuple(read), (), (value,)))
    tried: list[int | None] = []
    real = cut.cuts_without

    def counted(ops: Sequence[Op], lives: cut.Lives, start: int, end: int, limit: int | None) -> list[int]:
        tried.append(limit)
        return real(ops, lives, start, end, limit)

    monkeypatch.setattr(cut, "cuts_without", counted)
    monkeypatch.setattr(cut, "MOST_LIMITS", 16)
    pieces = cut.cut(chain, f"v{count - 1}", 24)
    assert 8 < len(tried) <= 16 + 1  # and once with no limit
    assert [op for one in pieces for op in one] == chain
