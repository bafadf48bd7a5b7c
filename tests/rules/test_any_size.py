"""Rules at sizes that nobody chose: every strategy, uneven pieces included, on one axis and on two."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rule_cases import bools, distinct, f, ints, plain

from meshwright.cluster import logical_mesh
from meshwright.rules.prove import Case, case
from meshwright.rules.strategies import prove

SIZES = st.integers(1, 6)

AT: dict[str, Callable[[int, int, int], Case]] = {
    "einsum": lambda a, b, c: case("aten.einsum.default", "bij,bjk->bik", (f(a, b, c), f(a, c, 2))),
    "addmm": lambda a, b, c: case("aten.addmm.default", f(c), f(a, b), f(b, c)),
    "baddbmm": lambda a, b, c: case("aten.baddbmm.default", f(a, b, c), f(a, b, 2), f(a, 2, c)),
    "addbmm": lambda a, b, c: case("aten.addbmm.default", f(b, c), f(a, b, 2), f(a, 2, c)),
    "cdist": lambda a, b, c: case("aten.cdist.default", f(a, b, 3), f(a, c, 3)),
    "roll": lambda a, b, c: case("aten.roll.default", f(a, b, c), (1,), (1,)),
    "pad": lambda a, b, c: case("aten.pad.default", f(a, b, c), (1, 0, 0, 2)),
    "one hot": lambda a, b, c: case("aten.one_hot.default", ints(c, a, b), c),
    "top-k": lambda a, b, c: case("aten.topk.default", distinct(a, b, c), 1),
    "sort": lambda a, b, c: case("aten.sort.default", distinct(a, b, c), 1),
    "cumsum": lambda a, b, c: case("aten.cumsum.default", f(a, b, c), 1),
    "gather": lambda a, b, c: case("aten.gather.default", f(a, b), 1, ints(b, a, c)),
    "scatter": lambda a, b, c: case("aten.scatter_add.default", f(a, b), 1, ints(b, a, c), f(a, c)),
    "index": lambda a, b, c: case("aten.index.Tensor", f(a, b, 3), (None, ints(b, c))),
    "index put": lambda a, b, c: case("aten.index_put.default", f(a, b, c), (None, ints(b, 2)), f(2, c), True),
    "upsample": lambda a, b, c: case("aten.upsample_bilinear2d.vec", f(a, b, 2, 2), (c, 3), False, None),
    "pooling": lambda a, b, c: case("aten.avg_pool2d.default", f(a, b, 2 * c, 4), (2, 2)),
    "group norm": lambda a, b, c: case("aten.group_norm.default", f(a, 2 * b, c + 1), b, f(2 * b), f(2 * b), 1e-2),
    "convolution": lambda a, b, c: case("aten.conv2d.default", f(a, b, 4, 4), f(c, b, 3, 3), f(c), (1, 1), (1, 1)),
    "grouped": lambda a, b, c: case("aten.conv1d.default", f(a, 2 * b, 4), f(b, 2, 3), f(b), (1,), (c,), (1,), b),
    "batch norm": lambda a, b, c: case(
        "meshwright.capture.functional:batch_norm", f(a + 1, b, c + 1), f(b), f(b), plain(b), plain(b), 0.1, 1e-2
    ),
    "layer norm": lambda a, b, c: case("aten.layer_norm.default", f(a, b, c + 1), (c + 1,), f(c + 1), f(c + 1), 1e-2),
    "nll": lambda a, b, c: case("aten.nll_loss_nd.default", f(a, b, c), ints(b, a, c), None, 1, 0),
    "pixels": lambda a, b, c: case("aten.pixel_shuffle.default", f(a, 4 * b, c, 2), 2),
    "windows": lambda a, b, c: case("aten.im2col.default", f(a, b, c + 1, 3), (2, 2), (1, 1), (0, 0), (1, 1)),
    "grid": lambda a, b, c: case("aten.grid_sampler.default", f(a, b, 3, 3), f(a, c, 2, 2), 0, 0, False),
    "where": lambda a, b, c: case("aten.where.self", bools(b, 1), f(a, b, c), f(c)),
}

SLOW = ("batch norm", "index", "baddbmm", "einsum", "addmm", "addbmm", "cumsum", "layer norm", "pixels", "pooling")
"""In the full matrix; tests/rules/test_table.py has them at fixed sizes."""


@pytest.mark.parametrize("name", [pytest.param(one, marks=pytest.mark.full) if one in SLOW else one for one in AT])
@settings(max_examples=5, deadline=None)
@given(a=SIZES, b=SIZES, c=SIZES, mesh=st.sampled_from([{"x": 2}, {"x": 3}, {"x": 2, "y": 2}, {"x": 2, "y": 3}]))
def test_every_strategy_holds_at_any_size(name: str, a: int, b: int, c: int, mesh: dict[str, int]) -> None:
    torch.manual_seed(0)
    assert prove(AT[name](a, b, c), logical_mesh(mesh), uneven=True) >= 1
