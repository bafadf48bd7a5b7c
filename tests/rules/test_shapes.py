"""Rules that follow from shapes, on shapes nobody chose by hand."""

from __future__ import annotations

from math import prod

from hypothesis import given, settings
from hypothesis import strategies as st
from rule_cases import f

from meshwright.capture.program import TensorType
from meshwright.cluster import logical_mesh
from meshwright.rules import Call
from meshwright.rules.prove import case
from meshwright.rules.shapes import reshaped
from meshwright.rules.strategies import prove

SIZES = st.sampled_from([1, 2, 3, 4, 6])


def factorisations(total: int, parts: list[int]) -> tuple[int, ...]:
    """A shape of `total` elements whose dims are, as far as they divide, the parts given."""
    shape = []
    for part in parts:
        if total % part == 0:
            shape.append(part)
            total //= part
    return (*shape, total)


@settings(max_examples=40, deadline=None)
@given(st.lists(SIZES, min_size=1, max_size=4), st.lists(SIZES, max_size=4), st.sampled_from([{"x": 2}, {"x": 3}]))
def test_any_reshape_shards_as_its_rule_says(shape: list[int], parts: list[int], mesh: dict[str, int]) -> None:
    target = factorisations(prod(shape), parts)
    assert prove(case("aten.reshape.default", f(*shape), target), logical_mesh(mesh)) >= 1


@settings(max_examples=30, deadline=None)
@given(st.lists(SIZES, min_size=1, max_size=3), st.data())
def test_any_broadcast_shards_as_its_rule_says(shape: list[int], data: st.DataObject) -> None:
    kept = data.draw(st.integers(0, len(shape)))
    other = [data.draw(st.sampled_from([1, size])) for size in shape[len(shape) - kept :]]
    assert prove(case("aten.mul.Tensor", f(*shape), f(*other)), logical_mesh({"x": 2})) >= 1
    assert prove(case("aten.add.Tensor", f(*other), f(*shape)), logical_mesh({"x": 2})) >= 1


@settings(max_examples=12, deadline=None)
@given(st.integers(1, 3), st.integers(1, 3), st.booleans(), st.sampled_from([{"x": 2}, {"x": 2, "y": 2}]))
def test_attention_shards_at_any_number_of_groups(
    groups: int, queries: int, causal: bool, mesh: dict[str, int]
) -> None:
    q, kv = f(2, 2 * groups * queries, 4, 3), f(2, 2 * groups, 4, 3)
    target = "aten.scaled_dot_product_attention.default"
    given_case = case(target, q, kv, kv.detach(), None, 0.0, causal, enable_gqa=True)
    assert prove(given_case, logical_mesh(mesh)) >= 4


def signature(source: tuple[int, ...], target: tuple[int, ...]) -> str:
    op = case("aten.reshape.default", f(*source), target).op
    return str(reshaped(Call(op, (TensorType(source, "float64"),))))


def test_reshapes_read_as_merges_and_splits() -> None:
    assert signature((4, 6, 12), (4, 6, 3, 4)) == "d0 d1 (d2 d3) -> d0 d1 d2 d3"
    assert signature((4, 6, 12), (24, 12)) == "d0 d1 d2 -> (d0 d1) d2"
    assert signature((2, 6), (4, 3)) == "d0 (d1 d2) -> (d0 d1) d2"
    assert signature((1, 6), (6, 1, 1)) == "1 d0 -> d0 1 1"
    assert signature((4, 3), (6, 2)) == "(d0 d1) d2 -> (d0 d3) d4"
