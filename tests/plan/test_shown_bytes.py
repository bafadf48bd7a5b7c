"""What is named as enough is enough as it is printed."""

from __future__ import annotations

import pytest

from meshwright.plan.units import parse_bytes, show_enough


@pytest.mark.parametrize("value", [1, 1023, 1024, 1025, 14_928_969_666, 144_850_193_666, 900 << 30])
def test_what_is_printed_is_no_less(value: int) -> None:
    shown = parse_bytes(show_enough(value).replace(" ", ""))
    assert value <= shown <= value * 1.01 + 1
