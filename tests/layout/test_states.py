"""Layouts as text, as shapes, and as DTensor placements."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.tensor import Partial, Replicate, Shard

from meshwright.errors import LayoutError
from meshwright.layout import I, Layout, P, R, S, all_layouts

layouts = st.lists(st.one_of(st.integers(0, 4).map(S), st.sampled_from([P, R, I])), max_size=4).map(
    lambda states: Layout(tuple(states))
)


@given(layouts)
def test_text_reads_back(layout: Layout) -> None:
    assert Layout.parse(str(layout)) == layout


def test_text_form() -> None:
    assert str(Layout.of(S(0), R)) == "[S(0), R]"
    assert Layout.parse(" [ S(10),P , I]") == Layout.of(S(10), P, I)


@pytest.mark.parametrize("dim", [True, False, -1, 1.0, "1"])
def test_a_dim_is_a_whole_number(dim: object) -> None:
    S(0), S(1)
    with pytest.raises(LayoutError, match="a dim counted from 0"):
        S(dim)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["S(0)", "[S]", "[Q]", "[S(-1)]", "[R,]", "[S(0) R]"])
def test_bad_text_is_refused(text: str) -> None:
    with pytest.raises(LayoutError, match="layout"):
        Layout.parse(text)


@given(st.integers(0, 40), st.integers(1, 7), st.integers(1, 5))
def test_nested_uneven_pieces_are_those_of_torch_chunk(length: int, outer: int, inner: int) -> None:
    layout = Layout.of(S(1), S(1))
    for i in range(outer):
        for j in range(inner):
            x = torch.empty(2, length)
            for size, at in ((outer, i), (inner, j)):
                chunks = torch.chunk(x, size, 1)
                x = chunks[at] if at < len(chunks) else x[:, :0]
            assert layout.local_shape((2, length), (outer, inner), (i, j)) == tuple(x.shape)


def test_shape_arithmetic() -> None:
    layout = Layout.of(S(0), P, S(0), S(2))
    assert layout.shard_factor((2, 3, 2, 5)) == 20
    assert layout.local_shape((8, 3, 10), (2, 3, 2, 5)) == (2, 3, 2)
    assert layout.global_shape((2, 3, 2), (2, 3, 2, 5)) == (8, 3, 10)
    assert layout.is_even((8, 3, 10), (2, 3, 2, 5))
    assert not layout.is_even((6, 3, 10), (2, 3, 2, 5))


def test_placements() -> None:
    assert Layout.of(S(1), P, R, I).placements() == (Shard(1), Partial(), Replicate(), Replicate())


def test_check_names_the_fault() -> None:
    Layout.of(S(1), R).check((4, 4), (2, 2))
    with pytest.raises(LayoutError, match="dim 2 of a tensor of shape"):
        Layout.of(S(2), R).check((4, 4), (2, 2))
    with pytest.raises(LayoutError, match="one per axis"):
        Layout.of(R).check((4, 4), (2, 2))


def test_what_is_no_layout_is_refused() -> None:
    for states in ("[S(0), R]", [S(0), R], ("S(0)", "R")):
        with pytest.raises(LayoutError, match=r"Layout\.parse"):
            Layout(states)  # type: ignore[arg-type]
    for dim in (-1, 1.5, "0"):
        with pytest.raises(LayoutError, match="counted from 0"):
            S(dim)  # type: ignore[arg-type]
    with pytest.raises(LayoutError, match="text such as"):
        Layout.parse(3)  # type: ignore[arg-type]
    with pytest.raises(LayoutError, match="one per axis"):
        Layout.of(S(0), R).local_shape((4, 4), (2,))


def test_layouts_are_all_there_and_hash_alike() -> None:
    assert len(all_layouts(4, 3)) == 343 == len(set(all_layouts(4, 3)))
    assert hash(Layout.parse("[S(0), R]")) == hash(Layout.of(S(0), R))
