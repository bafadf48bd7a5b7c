"""The cluster that a refusal names is one that the pins can be had on."""

from __future__ import annotations

from functools import partial

import pytest
from small_models import small_model

from meshwright.capture import capture
from meshwright.cluster import load_cluster
from meshwright.pins.pins import pinned_devices
from meshwright.price.parameter import Setting
from meshwright.solve.candidates import tight_candidates
from meshwright.solve.infeasible import does_not_fit
from meshwright.solve.min_memory import MemoryNeeded
from meshwright.solve.plan import make_plan


@pytest.mark.parametrize(
    ("count", "pins", "named"),
    [
        (2, ("dp=2",), "use local:4 (4 devices do)"),
        (4, ("tp=4",), "use local:8 (8 devices do)"),
        (2, ("mesh=2",), ""),
        (2, ("dp=2", "tp=1"), ""),
    ],
)
def test_a_cluster_that_is_named_can_have_the_pins(count: int, pins: tuple[str, ...], named: str) -> None:
    program, cluster = capture(*small_model("llama")), load_cluster(f"local:{count}")
    free = make_plan(program, cluster, pins=pins).predicted
    budget = free.static_bytes * 6 // 5  # less than with gradients, which are a third more
    tight = partial(tight_candidates, program, pins=pins, setting=Setting())
    todo = does_not_fit(cluster, budget, MemoryNeeded(1, "kept", 1), tight, pinned_devices(pins)).todo
    assert todo.startswith(named or "raise the memory limit")
