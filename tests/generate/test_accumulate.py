"""A compiled sum of gradients runs in place and gives what wide arithmetic gives."""

from __future__ import annotations

import pytest
import torch

from meshwright.generate.accumulate import Adder


@pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")
def test_it_adds_in_place_in_single_precision_whatever_the_strides() -> None:
    add = Adder(64 * 8, torch.bfloat16, "cpu")
    scale = torch.tensor(1 / 3)
    for turned in (False, True):
        total, gradient = torch.randn(64, 8), torch.randn(64, 8).bfloat16()
        if turned:
            total, gradient = total.t(), gradient.t()
        expected = total.double() + gradient.double() * scale.double()
        place = total.data_ptr()
        add(total, gradient, scale)
        assert total.data_ptr() == place
        torch.testing.assert_close(total.double(), expected, rtol=1e-6, atol=1e-6)
