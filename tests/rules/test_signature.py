"""Factor notation: what it says, and what it refuses."""

from __future__ import annotations

import pytest

from meshwright.capture.program import TensorType
from meshwright.errors import RuleError
from meshwright.layout import I, P, R, S
from meshwright.rules.signature import CARRY, Signature, parse


def types(*shapes: tuple[int, ...]) -> list[TensorType]:
    return [TensorType(shape, "float32") for shape in shapes]


def linear() -> Signature:
    return parse("... k, n k, n[k=P] -> ... n").bind((True, True, True), types((2, 3, 4), (5, 4), (5,)))


def test_states_follow_from_where_a_factor_stands() -> None:
    signature = linear()
    assert signature.choices() == (None, "d0", "d1", "k", "n")
    assert signature.states("d1") == ((S(1), R, R), (S(1),))
    assert signature.states("k") == ((S(2), S(1), P), (P,))
    assert signature.states("n") == ((R, S(0), S(0)), (S(2),))
    assert signature.states(None) == ((I, I, I), (I,))


def test_operands_that_are_not_given_drop_out() -> None:
    signature = parse("... k, n k, n[k=P] -> ... n").bind((True, True), types((3, 4), (5, 4)))
    assert str(signature) == "d0 k, n k -> d0 n"


def test_only_the_outermost_factor_of_a_merged_dim_shards() -> None:
    signature = parse("b (h d) -> b h d").bind((True,), types((2, 12)))
    assert signature.choices() == (None, "b", "h")
    assert signature.sizes(types((2, 12)), types((2, 3, 4))) == {"b": 2, "h": 3, "d": 4}


def test_marks_stop_a_factor() -> None:
    assert parse("b n! -> b n!").bind((True,), types((2, 3))).choices() == (None, "b")
    assert parse("i i -> i").bind((True,), types((3, 3))).choices() == (None,)
    assert parse("b 1 -> b").bind((True,), types((3, 1))).choices() == (None, "b")


def test_a_linear_op_carries_partial_sums() -> None:
    signature = parse("b, b -> b").bind((True, True), types((2,), (2,)))
    assert signature.linear().states(CARRY) == ((P, P), (P,))
    assert signature.linear(1).states(CARRY) == ((R, P), (P,))


def test_text_reads_back() -> None:
    text = "b (h d) 1, h[b=I] -> b h"
    assert str(parse(text).bind((True, True), types((2, 6, 1), (2,)))) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("m k, k n", "no arrow"),
        ("a ? -> a", "dims"),
        ("a[b=I][c=I] -> a", "term"),
        ("a[b=I] -> a", "says what happens"),
        ("a b[a=Q] -> b", "mark"),
    ],
)
def test_malformed_text_is_refused(text: str, message: str) -> None:
    with pytest.raises(RuleError, match=message):
        parse(text)


def test_a_rule_that_contradicts_its_op_is_refused() -> None:
    signature = linear()
    with pytest.raises(RuleError, match=r"factor k .* is 4 and 6"):
        signature.sizes(types((2, 3, 4), (5, 6), (5,)), types((2, 3, 5)))
    with pytest.raises(RuleError, match="2 operands for the rule"):
        parse("a -> a").bind((True,), types((2,), (2,)))
    with pytest.raises(RuleError, match="a tensor"):
        parse("a b -> a").bind((True,), types((2,))).sizes(types((2,)), types((2,)))
