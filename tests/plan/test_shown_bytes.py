"""What is named as enough is enough as it is printed."""

from __future__ import annotations

import pytest

from meshwright.plan.units import parse_bytes, show_enough


@pytest.mark.parametrize("value", [1, 1023, 1024, 1025, 14_928_969_666, 144_850_193_666, 900 << 30, 2 << 40])
def test_what_is_printed_is_no_less_and_can_be_given(value: int) -> None:
    (word,) = show_enough(value).split()  # in a shell two words would be two arguments
    shown = parse_bytes(word)
    assert shown is not None
    assert value <= shown <= value * 1.01 + 1
