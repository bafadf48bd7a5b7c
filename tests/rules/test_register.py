"""What a user may register as a rule, and what is refused, by one message each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import user_ops  # noqa: F401  the targets below name it
from rule_operands import f

import meshwright as mw
from meshwright.cluster import logical_mesh
from meshwright.errors import RuleError
from meshwright.rules import strategies
from meshwright.rules.prove import case
from meshwright.rules.register import forget_rule, user_rules

INNER = "aten.inner.default"


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    yield
    for target in user_rules():
        forget_rule(target)


BAD: list[tuple[tuple[Any, ...], str]] = [
    ((INNER, "m k"), r"the rule 'm k' of aten\.inner\.default: .* has no arrow"),
    ((INNER, "m k, n k -> m n["), "at most one"),
    ((INNER, "m k, (n k -> m n"), r"names, 1, \.\.\., \(h d\) and h!"),
    ((INNER, "m k, n k -> m n[q=P]"), r"says what happens on \['q'\]"),
    ((INNER, "m k, n k -> m n[m=Z]"), "one of I, P, R"),
    ((INNER, "m k -> m"), "has 1 operands\n.*2, one per tensor"),
    ((INNER, "m k, n k -> m n, m"), "has 2 results\n.*1, one per tensor"),
    ((INNER, None), "None as the rule of aten.inner.default"),
    ((INNER, "m k, n k -> m n", 3), "3 as the lowering of aten.inner.default"),
    ((3, "b -> b"), "a rule for 3\n.*an op by name"),
    (("aten.nothing.default", "b -> b"), "aten.nothing.default, which cannot be found"),
    (("no_such_module:f", "b -> b"), "no_such_module:f, which cannot be found"),
    (("nonsense", "b -> b"), "nonsense, which is no operator"),
    (("aten.linear.default", "b k, n k -> b n"), "an op that the table does not have"),
    (("user_ops:softened", "b, b -> b"), "has 2 operands\n.*0 to 1"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD)
def test_bad_rules_are_refused_by_name(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(RuleError, match=message):
        mw.register_rule(*arguments)


def test_a_name_without_overload_stands_for_all_of_them() -> None:
    mw.register_rule("aten.inner", "m k!, n k! -> m n")
    given = case(INNER, f(4, 8), f(2, 8))
    made = strategies(given.op, given.values(), logical_mesh({"x": 2}))
    assert [one.text for one in made] == ["-", "m", "n"]


def test_a_wrong_rule_is_refused_when_it_first_serves_an_op() -> None:
    mw.register_rule("user_ops:softened", "b n -> b n")
    given = case("user_ops:softened", f(4, 6))
    with pytest.raises(
        RuleError, match=r"the rule 'b n -> b n' registered for user_ops:softened is wrong: .*is off by"
    ):
        strategies(given.op, given.values(), logical_mesh({"x": 3}))


def test_a_rule_that_does_not_fit_a_call_names_the_op() -> None:
    mw.register_rule(INNER, "m k!, n k! -> m n")
    given = case(INNER, f(4, 6, 8), f(2, 8))
    with pytest.raises(
        RuleError, match=r"the rule 'm k!, n k! -> m n' registered for aten\.inner\.default is wrong: a tensor float64"
    ):
        strategies(given.op, given.values(), logical_mesh({"x": 2}))


def test_a_rule_that_cannot_be_tried_is_refused_unless_it_is_trusted() -> None:
    given = case("user_ops:picky", torch.ones(4, 6, dtype=torch.float64))
    mw.register_rule("user_ops:picky", "b n -> b n")
    said = r"(?s)'b n -> b n' registered for user_ops:picky cannot be tried.*trusted=True"
    with pytest.raises(RuleError, match=said):
        strategies(given.op, given.values(), logical_mesh({"x": 2}))
    mw.register_rule("user_ops:picky", "b n -> b n", trusted=True)
    assert {one.text for one in strategies(given.op, given.values(), logical_mesh({"x": 2}))} >= {"b", "n", "-"}
