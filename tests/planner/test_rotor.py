"""Rotor as published: the known figures, and brute force over all nested orders, each played step by step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.planner.memory.rotor import Link, Move, Saving, rotor

EVEN = [Link(1, 1, (Saving(2, 3),))] * 8


@pytest.mark.parametrize(
    ("budget", "seconds"), [(5, 52), (6, 38), (8, 32), (10, 30), (14, 28), (20, 26), (25, 24), (100, 24)]
)
def test_a_chain_of_eight(budget: int, seconds: float) -> None:
    order = rotor(EVEN, budget, 1)
    assert order is not None
    assert order.seconds == seconds
    assert peak_of(EVEN, order.moves, 1) <= budget
    assert time_of(EVEN, order.moves) == seconds


@pytest.mark.parametrize("budget", [0, 1, 4])
def test_under_five_slots_nothing_fits(budget: int) -> None:
    assert rotor(EVEN, budget, 1) is None


def time_of(chain: Sequence[Link], moves: Sequence[Move]) -> float:
    found = 0.0
    saving: dict[int, int] = {}
    for move in moves:
        link = chain[move.segment]
        if move.kind == "backward":
            found += link.savings[saving[move.segment]].backward_s
        else:
            found += link.forward_s
            saving[move.segment] = move.saving
    return found


def orders(chain: Sequence[Link], s: int, t: int) -> Iterator[tuple[Move, ...]]:
    """Every nested order of s..t."""
    for index in range(len(chain[s].savings)):
        if s == t:
            yield (Move("forward", s, index), Move("backward", s))
        else:
            for rest in orders(chain, s + 1, t):
                yield (Move("forward", s, index), *rest, Move("backward", s))
    for cut in range(s + 1, t + 1):
        passes = tuple(Move("pass", k) for k in range(s, cut))
        for later in orders(chain, cut, t):
            for earlier in orders(chain, s, cut - 1):
                yield (*passes, *later, *earlier)


links = st.builds(
    Link,
    forward_s=st.integers(1, 6),
    output_bytes=st.integers(1, 4),
    savings=st.lists(
        st.builds(
            Saving,
            backward_s=st.integers(1, 9),
            bytes=st.integers(4, 9),
            forward_transient_bytes=st.integers(0, 3),
            backward_transient_bytes=st.integers(0, 3),
        ),
        min_size=1,
        max_size=2,
    ).map(tuple),
    transient_bytes=st.integers(0, 3),
    weight_bytes=st.integers(0, 2),
    once=st.sampled_from([False, False, False, True]),
)


def runs_twice(chain: Sequence[Link], moves: Sequence[Move]) -> bool:
    return any(move.kind == "pass" and chain[move.segment].once for move in moves)


@settings(max_examples=60, deadline=None)
@given(st.lists(links, min_size=1, max_size=4), st.integers(1, 3), st.integers(5, 40))
def test_brute_force_over_all_nested_orders(chain: list[Link], input_bytes: int, budget: int) -> None:
    fitting = [
        time_of(chain, moves)
        for moves in orders(chain, 0, len(chain) - 1)
        if peak_of(chain, moves, input_bytes) <= budget and not runs_twice(chain, moves)
    ]
    order = rotor(chain, budget, input_bytes)
    assert (order is not None) == bool(fitting)
    if order is not None:
        assert order.seconds == min(fitting)
        assert peak_of(chain, order.moves, input_bytes) <= budget
        assert time_of(chain, order.moves) == order.seconds
        assert not runs_twice(chain, order.moves)


def test_more_memory_is_never_slower() -> None:
    chain = [Link(1 + i % 3, 1 + i % 2, (Saving(2 + i % 4, 4 + i % 5), Saving(5, 3))) for i in range(20)]
    found = [rotor(chain, budget, 1) for budget in range(6, 140, 3)]
    seconds = [order.seconds if order else float("inf") for order in found]
    assert seconds == sorted(seconds, reverse=True)
    assert seconds[-1] < seconds[0]


def peak_of(chain: Sequence[Link], moves: Sequence[Move], input_bytes: int) -> int:
    """The most bytes an order holds, played step by step; each value goes when no later step reads it."""
    reads = [{move.segment - 1} if move.kind != "backward" else set() for move in moves]
    outputs: dict[int, int] = {-1: input_bytes}
    saved: dict[int, int] = {}
    gradient = chain[-1].gradient_bytes
    most, left = input_bytes, 0
    for step, move in enumerate(moves):
        link, segment = chain[move.segment], move.segment
        held = sum(outputs.values()) + sum(saved.values()) + gradient + left
        if move.kind == "pass":
            most = max(most, held + link.output_bytes + link.transient_bytes)
            outputs[segment] = link.output_bytes
        elif move.kind == "forward":
            saving = link.savings[move.saving]
            most = max(most, held + saving.bytes + saving.forward_transient_bytes)
            saved[segment] = saving.bytes
        else:
            index = next(m.saving for m in reversed(moves[:step]) if m.kind == "forward" and m.segment == segment)
            transient = link.savings[index].backward_transient_bytes
            before = chain[segment - 1].gradient_bytes if segment else 0
            most = max(most, sum(outputs.values()) + sum(saved.values()) + link.gradient_bytes + left + transient)
            left += link.weight_bytes
            del saved[segment]
            gradient = before
        for name in list(outputs):
            if name >= 0 and not _read_again(name, moves[step + 1 :], reads[step + 1 :], saved):
                del outputs[name]
    return most


def _read_again(name: int, rest: Sequence[Move], reads: Sequence[set[int]], saved: dict[int, int]) -> bool:
    """Whether a checkpoint is read before it is recomputed; a backward reads its segment's input too."""
    for move, read in zip(rest, reads, strict=True):
        if name in read or (move.kind == "backward" and move.segment - 1 == name and name not in saved):
            return True
        if move.segment == name and move.kind in ("pass", "forward"):
            return False
    return False
