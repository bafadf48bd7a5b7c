"""Rules from DTensor: its own for what an op decomposes to, and those that users register with it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from rule_cases import f
from torch import Tensor
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding

from meshwright.cluster import logical_mesh
from meshwright.errors import RuleError, RuleWarning
from meshwright.rules import resolve_rule, strategies, tier
from meshwright.rules.prove import Case, case
from meshwright.rules.rule import Call
from meshwright.rules.strategies import prove


@torch.library.custom_op("mw_tests::weigh", mutates_args=())
def weigh(x: Tensor, weight: Tensor) -> Tensor:
    return torch.softmax(x, -1) * weight


@weigh.register_fake
def _(x: Tensor, weight: Tensor) -> Tensor:
    return torch.empty_like(x)


weigh.register_autograd(
    lambda ctx, gradient: torch.autograd.functional.vjp(
        lambda x, weight: torch.softmax(x, -1) * weight, ctx.saved_tensors, gradient
    )[1],
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)


def texts(given: Case, **axes: int) -> set[str]:
    return {str(one).partition(": ")[2] for one in strategies(given.op, given.values(), logical_mesh(axes))}


@pytest.mark.parametrize("mesh", [{"x": 2}, {"x": 3}, {"x": 2, "y": 2}], ids=str)
def test_what_dtensor_knows_of_the_parts_holds_for_the_whole(mesh: dict[str, int]) -> None:
    given = case("aten.inner.default", f(12, 5), f(6, 5))
    assert tier(given.op, given.values()) == "dtensor"
    assert prove(given, logical_mesh(mesh)) > 1, given.op


def test_a_linear_op_passes_parts_of_sums_through() -> None:
    given = case("user_ops:project", f(12, 6), f(24, 6), f(24))
    assert "[S(1)], [S(1)], [P] -> [P]" in texts(given, x=2)


def test_an_op_is_looked_at_once() -> None:
    given = case("aten.inner.default", f(8, 6), f(4, 6))
    call = Call.of(given.op, given.values())
    assert resolve_rule(given.op, call.types) is resolve_rule(given.op, call.types)


def register(sharding: Any) -> None:
    """The last one stands."""
    register_sharding(torch.ops.mw_tests.weigh.default)(sharding)


def weighed() -> Case:
    return case("mw_tests.weigh.default", f(12, 6), f(6))


def test_a_sharding_registered_with_dtensor_serves_the_op() -> None:
    def sharding(x: Any, weight: Any) -> Any:
        rows = range(x.ndim - 1)
        return [
            ([Replicate()], [Replicate(), Replicate()]),
            *(([Shard(dim)], [Shard(dim), Replicate()]) for dim in rows),
        ]

    register(sharding)
    given = weighed()
    assert tier(given.op, given.values()) == "user"
    assert texts(given, x=2) == {"[I], [I] -> [I]", "[S(0)], [R] -> [S(0)]"}
    assert prove(given, logical_mesh({"x": 2, "y": 2})) == 4


def test_a_wrong_placement_is_dropped_and_named() -> None:
    register(lambda x, weight: [([Shard(1)], [Shard(1), Shard(0)]), ([Shard(0)], [Shard(0), Replicate()])])
    given = weighed()
    with pytest.warns(RuleWarning, match=r"for mw_tests\.weigh\.default is wrong and is left out"):
        assert texts(given, x=2) == {"[I], [I] -> [I]", "[S(0)], [R] -> [S(0)]"}


def test_a_sharding_that_cannot_be_read_is_named() -> None:
    given = weighed()
    register(lambda x, weight: [([Shard(0)], [Shard(0)])])
    with pytest.raises(
        RuleError, match=r"mw_tests\.weigh\.default gives(.|\n)*pairs of 1 output and 2 input placements"
    ):
        texts(given, x=2)
    register(lambda x, weight: x.nothing)
    with pytest.raises(RuleError, match=r"registered with DTensor for mw_tests\.weigh\.default.*nothing"):
        texts(given, x=2)
