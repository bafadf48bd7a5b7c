"""Rules that are found: what is found is what the proof confirms, and what cannot be sharded is left whole."""

from __future__ import annotations

import pytest
import torch
import user_ops  # noqa: F401  the targets below name it
from rule_cases import f

from meshwright.cluster import logical_mesh
from meshwright.errors import RuleError
from meshwright.rules import strategies, tier
from meshwright.rules.discover import experiments
from meshwright.rules.findings import sample
from meshwright.rules.prove import Case, case
from meshwright.rules.rule import Call
from meshwright.rules.strategies import prove
from meshwright.rules.table import RULES

MESHES = ({"x": 2}, {"x": 3}, {"x": 2, "y": 2})


def cases() -> list[Case]:
    return [
        case("user_ops:softened", f(12, 6)),
        case("user_ops:average", f(12, 6)),
        case("user_ops:project", f(12, 6), f(24, 6), f(24)),
        case("user_ops:scaled_sum", f(12, 6), f(6)),
        case("aten.fft_rfft.default", f(12, 6, 8)),
        case("aten.renorm.default", f(12, 6), 2, 0, 1.0),
        case("user_ops:windows", f(12, 3, 8, 4)),
    ]


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_everything_found_is_proven(mesh: dict[str, int]) -> None:
    for given in cases():
        assert given.op.target.rpartition(".")[0] not in RULES
        assert tier(given.op, given.values()) in ("dtensor", "discovered")
        assert prove(given, logical_mesh(mesh)) > 1, given.op


def test_what_dtensor_has_no_rule_for_is_found_by_running_it() -> None:
    assert {tier(given.op, given.values()) for given in cases()[4:]} == {"discovered"}


def test_pieces_are_no_smaller_than_those_that_were_tried() -> None:
    """Windows of two rows: eight rows on two and four ranks, but not one row on each of eight."""
    given = cases()[-1]
    shards = {
        ways: {str(s.operands[0]) for s in strategies(given.op, given.values(), logical_mesh({"x": ways}))}
        for ways in (4, 8)
    }
    assert "[S(2)]" in shards[4]
    assert "[S(2)]" not in shards[8]


def test_what_is_found_is_what_a_rule_would_say() -> None:
    given = cases()[2]
    found = {
        (*map(str, made.operands), *map(str, made.results))
        for made in strategies(given.op, given.values(), logical_mesh({"x": 2}))
    }
    assert found == {
        ("[I]", "[I]", "[I]", "[I]"),
        ("[S(0)]", "[R]", "[R]", "[S(0)]"),
        ("[R]", "[S(0)]", "[S(0)]", "[S(1)]"),
        ("[S(1)]", "[S(1)]", "[P]", "[P]"),
        ("[P]", "[R]", "[P]", "[P]"),
        ("[R]", "[P]", "[P]", "[P]"),
    }


def test_sums_come_out_partial() -> None:
    given = cases()[3]
    results = {tuple(map(str, made.results)) for made in strategies(given.op, given.values(), logical_mesh({"x": 2}))}
    assert ("[S(0)]", "[P]") in results


def test_numbers_of_one_sign_do_not_hide_what_an_op_does_with_others() -> None:
    given = case("user_ops:bent", f(12, 6), f(6, 8))
    made = strategies(given.op, given.values(), logical_mesh({"x": 2}))
    assert {str(one).partition(": ")[2] for one in made} == {
        "[I], [I] -> [I]",
        "[S(0)], [R] -> [S(0)]",
        "[R], [S(1)] -> [S(1)]",
    }


def test_nothing_is_concluded_from_zeros() -> None:
    given = case("user_ops:silent", f(12, 6))
    assert tier(given.op, given.values()) == "fallback"


def test_large_operands_are_tried_small() -> None:
    big = case("user_ops:softened", torch.zeros(512, 1024).requires_grad_())
    assert tier(big.op, big.values()) != "fallback"


def test_what_draws_random_numbers_is_refused_by_name() -> None:
    given = case("user_ops:noisy", f(4, 6))
    with pytest.raises(RuleError, match="user_ops:noisy gives another result each time"):
        strategies(given.op, given.values(), logical_mesh({"x": 2}))


def test_an_op_that_ends_the_process_is_tried_in_a_copy_of_it() -> None:
    given = case("user_ops:fatal", f(12, 6), f(12))
    assert tier(given.op, given.values()) == "discovered"
    assert prove(given, logical_mesh({"x": 2})) > 1
    never = case("user_ops:once", f(12, 6))
    assert tier(never.op, never.values()) == "fallback"


@pytest.mark.full
def test_where_copies_cannot_compute_gradients_a_helper_makes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has computed gradients and sees a GPU: nothing is tried there."""
    monkeypatch.setattr("meshwright.rules.copied._has_gradients", lambda: False)
    tried_here = case("user_ops:fatal", f(24, 6), f(24))
    assert tier(tried_here.op, tried_here.values()) == "discovered"
    registered = case("user_ops.unchecked.default", f(24, 6), f(24))
    assert tier(registered.op, registered.values()) == "discovered"
    noisy = case("user_ops:noisy", f(8, 6))
    with pytest.raises(RuleError, match="user_ops:noisy gives another result each time"):
        strategies(noisy.op, noisy.values(), logical_mesh({"x": 2}))
    never = case("user_ops:once", f(24, 6))
    assert tier(never.op, never.values()) == "fallback"


def test_shapes_are_checked_on_fake_tensors_before_an_op_is_run() -> None:
    """In this very process, which a kernel that is run on shapes that do not agree would end."""
    given = case("user_ops.unchecked.default", f(12, 6), f(12))
    small = sample(Call(given.op, tuple(value.type for value in given.values().values())))
    assert small is not None
    assert list(experiments(small))


def test_a_kernel_that_does_not_check_its_shapes_does_no_harm() -> None:
    given = case("aten._weight_norm_interface.default", f(12, 6), f(12, 1))
    assert tier(given.op, given.values()) in ("discovered", "dtensor", "fallback")
