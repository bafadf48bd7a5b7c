"""Pictures that cross boundaries: as much freedom as tables can hold."""

from __future__ import annotations

import pytest

from meshwright.capture import capture
from meshwright.cluster import load_cluster
from meshwright.layout import Layout
from meshwright.models.reference import parse_reference
from meshwright.pins.pins import Pins
from meshwright.planner.sharding.model import ShardingModel
from meshwright.planner.space.image_boundaries import ALL, NO_HEIGHT, NO_WIDTH, boundary_subset, image_cut_choices
from meshwright.price.parameter import Setting

EVERY = tuple(
    Layout.parse(f"[{one}, {other}]")
    for one in ("I", "S(0)", "S(1)", "S(2)", "S(3)")
    for other in ("I", "S(0)", "S(1)", "S(2)", "S(3)")
)


def test_width_goes_first_then_height() -> None:
    assert boundary_subset(EVERY, ALL) == EVERY
    left = {str(layout) for layout in boundary_subset(EVERY, NO_WIDTH)}
    assert {"[S(0), S(2)]", "[I, S(2)]", "[S(1), S(0)]"} < left
    assert not left & {"[S(3), I]", "[S(2), S(2)]", "[S(1), S(2)]"}
    assert len(left) == 13
    assert {str(layout) for layout in boundary_subset(EVERY, NO_HEIGHT)} == {
        f"[{one}, {other}]" for one in ("I", "S(0)", "S(1)") for other in ("I", "S(0)", "S(1)")
    }


@pytest.mark.full
def test_cells_that_read_several_others_have_tables_that_can_be_held() -> None:
    """Asked pair by pair, one segment of this model on 2x2 would take hours."""
    program = capture(*parse_reference("amoebanet?layers=3&width=24&image=64").meta(8)).at_batch(8)
    cluster = load_cluster("local:4")
    assert image_cut_choices(program, cluster.mesh((4,))) == (ALL,)
    shardings = ShardingModel(program, cluster.mesh((2, 2)), Pins(), Setting())
    assert all(shardings.problem(index).prepared for index in range(len(program.segments)))
    assert shardings.image_cuts == [ALL]
