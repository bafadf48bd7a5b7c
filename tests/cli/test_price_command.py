"""`meshwright price`: a configuration, without search."""

from __future__ import annotations

import pytest

from meshwright.cli import main

GIVEN = ["price", "llama3-8b", "--cluster", "h100:8", "--global-batch", "64", "--pin", "tp=2"]


def test_options_of_plan_are_those_of_price_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*GIVEN, "--seq", "4096", "--precision", "fp16"]) == 0
    shown = capsys.readouterr().out
    assert "tp=2" in shown
    assert main([*GIVEN, "--set", "seq=4096", "--pin", "precision=fp16"]) == 0
    assert capsys.readouterr().out == shown
    assert main(GIVEN) == 0
    assert capsys.readouterr().out != shown


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--seq", "0"), "seq=0"),
        (("--precision", "fp7"), "precision=fp7"),
        (("--pin", "microbatch=8"), "micro_batch=SIZE"),
    ],
)
def test_bad_ones_are_refused(given: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*GIVEN, *given]) == 2
    assert said in capsys.readouterr().err


def test_pins_of_a_row_of_recipes_are_known(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*GIVEN, "--pin", "pp=2", "--pin", "recompute=none"]) == 0
    shown = capsys.readouterr().out
    assert main([*GIVEN, "--pin", "pp=4+4", "--pin", "recompute=keep"]) == 0
    assert capsys.readouterr().out == shown
    assert "estimate" in shown
