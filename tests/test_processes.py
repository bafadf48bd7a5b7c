"""A test whose ranks failed says which and why, and takes no later test with it."""

from __future__ import annotations

import os

import pytest
from processes import GlooPool, forked

pytestmark = pytest.mark.full


def doubled(rank: int, by: int) -> int:
    return by * rank


def first_fails(rank: int) -> None:
    """The other waits for it as a run does that then gives up."""
    if rank == 0:
        raise ValueError("of itself")
    os._exit(3)


def test_a_pool_that_lost_a_rank_tells_all_and_goes_on() -> None:
    pool = GlooPool(2)
    with pytest.raises(AssertionError, match=r"(?s)rank 0 failed:.*ValueError: of itself.*rank 1 ended with 3"):
        pool.run(first_fails)
    assert pool.run(doubled, 5) == [0, 5]
    pool.close()


def test_so_do_copies() -> None:
    with pytest.raises(AssertionError, match=r"(?s)rank 0 failed:.*ValueError: of itself.*rank 1 ended with 3"):
        forked(2, first_fails)
    assert forked(2, doubled, 5) == [0, 5]
