"""What a search relies on to leave numbers of micro-batches out: they take no less than a part of the first one's
bytes, and are no faster."""

from __future__ import annotations

from itertools import pairwise

import pytest
from small_models import small_model

from meshwright.capture import capture
from meshwright.cluster import load_cluster
from meshwright.price.parameter import Setting
from meshwright.solve.candidates import candidates_on
from meshwright.solve.intra.chain import floor_s
from meshwright.solve.search import Least, in_proportion


@pytest.mark.parametrize("name", ["llama", "moe"])
def test_more_micro_batches_are_no_faster_and_take_no_less_than_their_part(name: str) -> None:
    program = capture(*small_model(name)).at_batch(8)
    assert in_proportion(program)
    mesh = load_cluster("dgx-h100:1").mesh((2, 2), ranks=(0, 1, 2, 3))
    for candidate in candidates_on(program, [mesh], (), Setting()):
        made = {number: candidate.frontier(number) for number in candidate.microbatches}
        least = Least.of(made[candidate.microbatches[0]])
        for number, frontier in made.items():
            assert least.bytes_at(number) <= frontier.least_held() + frontier.least_transient()
        floors = [floor_s(frontier) for frontier in made.values()]
        assert all(one <= other * (1 + 1e-12) for one, other in pairwise(floors))
