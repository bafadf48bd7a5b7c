"""The strategies of an op: which there are, in which order, and what each declares."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch
import user_ops  # noqa: F401  the targets below name it
from rule_cases import FAMILIES, cases
from rule_operands import f, ints

from meshwright.cluster import logical_mesh
from meshwright.errors import ClusterError, LayoutError, RuleError, VerifyError
from meshwright.layout import Collective, Layout, S
from meshwright.rules import Strategy, register_rule, resolve_rule, strategies, strategy, tier
from meshwright.rules.prove import Case, case
from meshwright.rules.register import forget_rule
from meshwright.rules.strategies import prove

SDPA = "aten.scaled_dot_product_attention.default"


def texts(given: Case, **axes: int) -> list[str]:
    return [found.text for found in strategies(given.op, given.values(), logical_mesh(axes))]


def test_strategies_are_the_product_over_the_axes_in_a_fixed_order() -> None:
    given = case("aten.mm.default", f(4, 6), f(6, 8))
    assert texts(given, x=2) == ["-", "m", "k", "n"]
    assert texts(given, x=2, y=2)[:6] == ["-,-", "-,m", "-,k", "-,n", "m,-", "m,m"]
    assert len(texts(given, x=2, y=2)) == 15  # 4 x 4, less k,k: 6 does not divide by 4


def test_a_size_that_does_not_divide_is_left_out() -> None:
    given = case("aten.mm.default", f(4, 6), f(6, 8))
    assert texts(given, x=3) == ["-", "k"]
    assert texts(given, x=4) == ["-", "m", "n"]


def test_a_strategy_is_found_by_its_text() -> None:
    given, mesh = case("aten.linear.default", f(4, 6), f(8, 6), f(8)), logical_mesh({"x": 2, "y": 2})
    found = strategy(given.op, given.values(), mesh, "d0,k")
    assert str(found) == "d0,k: [S(0), S(1)], [R, S(1)], [R, P] -> [S(0), P]"
    assert found == strategy(given.op, given.values(), mesh, ("d0", "k"))
    assert found in strategies(given.op, given.values(), mesh)
    with pytest.raises(RuleError, match="no strategy 'd0,z'"):
        strategy(given.op, given.values(), mesh, "d0,z")


def test_lowerings_have_local_sizes_in_arguments_and_results() -> None:
    given, mesh = case("aten.view.default", f(4, 6, 8), (4, 6, 4, -1)), logical_mesh({"x": 2, "y": 2})
    local = strategy(given.op, given.values(), mesh, "d0,d2").lowering
    assert local.args[1] == (2, 6, 2, 2)
    assert str(local.results[0].type) == "float64[2, 6, 2, 2]"
    assert strategy(given.op, given.values(), mesh, "-,-").lowering.target == "aten.view.default"


def test_grouped_query_heads_must_divide_with_their_keys() -> None:
    q, k = f(1, 12, 5, 8), f(1, 4, 5, 8)
    given = case(SDPA, q, k, k.detach(), None, 0.0, True, enable_gqa=True)
    assert texts(given, x=2) == ["-", "h"]  # a sequence of 5 divides by neither
    assert texts(given, x=3) == ["-"]  # 12 query heads divide by 3, 4 key heads do not


def test_one_key_head_serves_all_queries() -> None:
    kv = f(1, 1, 5, 8)
    given = case(SDPA, f(1, 12, 5, 8), kv, kv.detach(), enable_gqa=True)
    found = strategy(given.op, given.values(), logical_mesh({"x": 3}), "h")
    assert [str(layout) for layout in found.operands] == ["[S(1)]", "[R]", "[R]"]


def test_a_ring_passes_keys_and_values_on_and_gathers_nothing() -> None:
    q, k = f(2, 4, 6, 8), f(2, 2, 6, 8)
    given = case(SDPA, q, k, k.detach(), None, 0.0, True, enable_gqa=True)
    found = strategy(given.op, given.values(), logical_mesh({"x": 3}), "ring")
    assert {str(layout) for layout in (*found.operands, *found.results)} == {"[S(2)]"}
    block = Collective("send", "x", 2 * 2 * 2 * 2 * 8 * 8)  # keys and values of two positions, two groups, two samples
    assert found.collectives_forward == (block,) * 2
    assert found.collectives_backward == (block,) * 5  # twice on, with the gradients beside, which then go home


def test_a_ring_needs_one_sequence_and_no_mask() -> None:
    masked = case(SDPA, f(2, 4, 6, 8), f(2, 4, 6, 8), f(2, 4, 6, 8), torch.ones(6, 6).tril().bool())
    assert "ring" not in texts(masked, x=2)
    crossed = case(SDPA, f(2, 4, 6, 8), f(2, 4, 12, 8), f(2, 4, 12, 8))
    assert "ring" not in texts(crossed, x=2)


def test_vocabulary_parallel_loss_moves_rows_and_not_logits() -> None:
    given = case("aten.cross_entropy_loss.default", f(6, 1000), ints(1000, 6))
    found = strategy(given.op, given.values(), logical_mesh({"x": 2}), "c")
    assert [str(c) for c in found.collectives_forward] == ["all_reduce(x, 48 B)", "all_reduce(x, 96 B)"]
    assert found.collectives_backward == ()


def test_one_collective_serves_two_axes_on_one_factor() -> None:
    given = case("aten.cross_entropy_loss.default", f(8, 12), ints(12, 8))
    found = strategy(given.op, given.values(), logical_mesh({"dp": 2, "tp": 2}), "r0,r0")
    assert [str(c) for c in found.collectives_forward] == ["all_reduce(dp*tp, 8 B)"]


def test_batch_norm_gathers_two_numbers_per_channel() -> None:
    x, running = f(4, 6, 3), torch.rand(6, dtype=torch.float64)
    given = case("meshwright.capture.functional:batch_norm", x, f(6), f(6), running, running.clone(), 0.1, 1e-5)
    found = strategy(given.op, given.values(), logical_mesh({"x": 2}), "b")
    assert [str(c) for c in found.collectives_forward] == [f"all_gather(x, {2 * 2 * 6 * 8} B)"]
    assert [str(c) for c in found.collectives_backward] == [f"reduce_scatter(x, {2 * 2 * 6 * 8} B)"]
    assert [str(layout) for layout in found.results] == ["[S(0)]", "[I]", "[I]"]


def test_batch_norm_survives_means_far_from_zero() -> None:
    x = (torch.rand(8, 4, 3) + 1e3).requires_grad_()
    running = torch.zeros(4)
    given = case("meshwright.capture.functional:batch_norm", x, None, None, running, running + 1, 0.1, 1e-5)
    assert prove(given, logical_mesh({"x": 2}), tolerance=2e-3) == 3  # squares of the sums would be off by 1e-1


def test_an_unknown_op_runs_alike_on_every_rank() -> None:
    given = case("user_ops:shares", f(4, 6))
    assert tier(given.op, given.values()) == "fallback"
    assert texts(given, x=2) == ["-"]
    assert prove(given, logical_mesh({"x": 2})) == 1


def test_a_users_rule_serves_an_op_the_table_does_not_have() -> None:
    given = case("user_ops:softened", f(4, 6))
    register_rule("user_ops:softened", "... n! -> ... n!")
    try:
        assert resolve_rule(given.op).tier == "user"
        assert texts(given, x=2) == ["-", "d0"]
    finally:
        forget_rule("user_ops:softened")
    with pytest.raises(RuleError, match="an op that the table does not have"):
        register_rule("aten.linear.default", "... k, n k -> ... n")


def test_random_ops_are_refused_by_name() -> None:
    dropped = case("aten.dropout.default", f(4, 6), 0.5, False)
    random = dropped.op.map(lambda leaf: True if leaf is False else leaf)
    with pytest.raises(RuleError, match=r"the random op .*aten\.dropout"):
        strategies(random, dropped.values(), logical_mesh({"x": 2}))
    given = case("aten.rand_like.default", f(4, 6))
    with pytest.raises(RuleError, match=r"aten\.rand_like"):
        resolve_rule(given.op)
    q = f(1, 2, 3, 4)
    attention = case(SDPA, q, q.detach(), q.detach(), None, 0.1)
    with pytest.raises(RuleError, match="random op"):
        resolve_rule(attention.op)


def test_partial_sums_are_not_carried_through_casts_or_whole_numbers() -> None:
    assert "+" in texts(case("aten.neg.default", f(4, 6)), x=2)
    assert "+" not in texts(case("aten.to.dtype", f(4, 6), torch.float32), x=2)
    assert "+" not in texts(case("aten.neg.default", ints(5, 4, 6)), x=2)
    assert "+" not in texts(case("aten.add.Tensor", f(4, 6), 1.0), x=2)
    assert "+" not in texts(case("aten.mul.Tensor", f(4, 6), f(6)), x=2)


def test_a_strategy_that_does_not_fit_its_op_fails_verification() -> None:
    given, mesh = case("aten.mm.default", f(4, 6), f(6, 8)), logical_mesh({"x": 2})
    found = strategy(given.op, given.values(), mesh, "m")
    found.verify(given.op, given.values(), mesh)
    other = case("aten.mm.default", f(4, 6), f(6, 2)).op
    moved = replace(found, collectives_forward=(Collective("all_reduce", "z", 8),))
    short = replace(found, operands=found.operands[:1])
    deep = replace(found, operands=(Layout.of(S(2)), found.operands[1]))
    with pytest.raises(VerifyError, match="makes"):
        found.verify(other, given.values(), mesh)
    with pytest.raises(VerifyError, match="factors, operands"):
        short.verify(given.op, given.values(), mesh)
    with pytest.raises(LayoutError, match="shards dim 2"):
        deep.verify(given.op, given.values(), mesh)
    with pytest.raises(ClusterError, match="no axis 'z'"):
        moved.verify(given.op, given.values(), mesh)


def cost(made: Strategy) -> Counter[Collective]:
    return Counter(made.collectives_forward + made.collectives_backward)


def replaces(one: Strategy, other: Strategy, grads: list[bool]) -> bool:
    """Whether `one` could always stand for `other`: its results are where the other's are, it moves no more, and what
    the other reads can be had as it wants it for free. What is `R` may be used as anything; without a gradient `I` too.
    """
    free = (
        there == here or there.kind == "R" or (not grad and there.kind == "I")
        for theirs, mine, grad in zip(other.operands, one.operands, grads, strict=True)
        for there, here in zip(theirs, mine, strict=True)
    )
    return one.results == other.results and not cost(one) - cost(other) and all(free)


@pytest.mark.parametrize("family", FAMILIES)
def test_no_strategy_could_always_be_replaced_by_another(family: str) -> None:
    """So none can be left out, whatever the neighbours are and whatever a link costs: the space has no dead weight."""
    for given in cases(family):
        found = strategies(given.op, given.values(), logical_mesh({"x": 2, "y": 2}))
        grads = [given.values()[name].grad for name in given.op.operands()]
        dead = [(str(a), str(b)) for a in found for b in found if a is not b and replaces(a, b, grads)]
        assert not dead, given.op


def test_attention_has_few_strategies_though_it_may_go_round_a_ring() -> None:
    q, k = f(4, 24, 12, 4), f(4, 12, 12, 4)
    given = case(SDPA, q, k, k.detach(), None, 0.0, True, enable_gqa=True)
    assert len(texts(given, x=2)) == 5
    assert len(texts(given, x=2, y=2)) == 23  # of 25, less those with keys gathered on one axis and passed on the other
