"""What backward does not read is not gathered for it."""

from __future__ import annotations

from collections import Counter

import torch
from small_models import small_model
from torch import Tensor, nn

from meshwright.capture import capture
from meshwright.cluster import load_cluster
from meshwright.planner.plan import make_plan
from meshwright.price.buckets import segment_collectives
from meshwright.profile.lookup import lookup_segments
from meshwright.schedule.of_plan import plan_lists


def test_the_embedding_is_gathered_for_forward_alone() -> None:
    program = capture(*small_model("gpt"))
    assert lookup_segments(program) == {0}
    for microbatches in (1, 3):
        pins = ("dp=2", "zero=3", f"microbatches={microbatches}")
        plan = make_plan(program, load_cluster("local:2"), pins=pins)
        gathers = Counter(one.segment for one in plan_lists(plan, program)[0] if one.kind == "gather")
        assert gathers == {0: microbatches, 1: 2 * microbatches, 2: 2 * microbatches, 3: microbatches}
        for segment, times in gathers.items():
            assert segment is not None
            own = [one.kind for one in segment_collectives(plan, program, segment)].count("all_gather")
            assert own == times, "the price counts what the list makes"


class Normed(nn.Module):
    """Backward of the norm reads what was looked up."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(8, 4), nn.LayerNorm(4)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.norm(self.table(tokens)).square().mean()


def test_a_segment_that_keeps_something_of_its_parameters_is_no_lookup() -> None:
    program = capture(Normed(), {"tokens": torch.zeros(2, 3, dtype=torch.int64)})
    assert lookup_segments(program) == frozenset()
