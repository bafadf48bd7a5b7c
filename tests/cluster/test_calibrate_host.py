"""What whole steps say of a host's figures of single ops."""

from __future__ import annotations

import pytest

from meshwright.cluster.calibrate.eager import LAYERS
from meshwright.cluster.calibrate.host import _factors, _scale_flat, _scale_mixture


def test_a_linear_layer_of_rows_takes_what_is_left_of_a_perceptrons_layer() -> None:
    table = {"linear_flat": [4.0, 8.0], "relu": [1.0, 2.0], "module": [0.5, 0.0]}
    _scale_flat(table, (1.0, 0.5), (1.0 + 2 * 0.5 + 3.0, 0.5 * (2.0 + 6.0)))
    assert table["linear_flat"] == pytest.approx([3.0, 6.0])
    assert table["relu"] == [1.0, 2.0]


def test_a_mixtures_own_ops_take_what_it_adds_to_a_layer() -> None:
    ops = ("view", "linear_flat", "cast", "softmax", "topk", "column_sum", "binary", "chunk", "silu", "added", "module")
    table = {name: [1.0, 1.0] for name in (*ops, "summed")}
    table |= {"dispatch": [10.0, 10.0], "grouped_mm_4": [4.0, 4.0], "grouped_mm_16": [16.0, 16.0]}
    own = 10 + 2 * (4 + 12 / 3)  # eight experts lie a third of the way from 4 to 16
    besides = [2 + 1 + 1 + 1 + 1 + 1 + 2 + 1 + 1 + 1 + 2] * 2
    besides[1] += 2  # gradients that are summed
    _scale_mixture(table, (1.0, 1.0), [besides[0] + 1.5 * own, besides[1] + 1.25 * own], casts=True)
    assert table["dispatch"] == pytest.approx([15.0, 12.5])
    assert table["grouped_mm_16"] == pytest.approx([24.0, 20.0])
    assert table["view"] == [1.0, 1.0]
    _scale_mixture(table, (1.0, 1.0), [1e9, 1e9], casts=True)
    assert table["dispatch"] == pytest.approx([30.0, 25.0]), "at most twice: what is stranger was disturbed"


def test_steps_of_both_kinds_say_what_their_ops_take_together() -> None:
    """A host that needs 0.8 and 0.9 of the sum in one kind's layers, 1.2 and 1.1 in the other's, and nothing once."""
    layers, ratios, parts = [[10.0, 20.0], [5.0, 6.0]], [[0.8, 0.9], [1.2, 1.1]], [1.0, 1.0]
    seen = [[a * b for a, b in zip(own, ratio, strict=True)] for own, ratio in zip(layers, ratios, strict=True)]
    least = [ratio * part for ratio, part in zip(ratios[0], parts, strict=True)]
    whole = [least[side] + 2 * LAYERS * sum(one[side] for one in seen) for side in (0, 1)]
    rows, images = _factors(layers, seen, least, whole, parts)
    assert rows == pytest.approx(ratios[0], rel=0.01)
    assert images == pytest.approx([(0.8 * 1.2) ** 0.5, (0.9 * 1.1) ** 0.5], rel=0.01)
