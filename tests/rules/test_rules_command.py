"""`meshwright rules` lists what the table has."""

from __future__ import annotations

import argparse
import json

import pytest

from meshwright.rules.command import add_arguments
from meshwright.rules.table import RULES, UNPROVEN


def output(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    args = parser.parse_args(words)
    assert args.run(args) == code
    return capsys.readouterr().out


def test_every_rule_is_listed_with_its_factors(capsys: pytest.CaptureFixture[str]) -> None:
    listed = json.loads(output(capsys, "--json"))
    assert {row["op"] for row in listed} == set(RULES)
    assert all("->" in row["factors"] and row["tier"] == "table" for row in listed)


def test_what_is_not_proven_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys)
    assert "not proven: aten.empty (uninitialised memory has no value)" in text
    assert f"{len(RULES)} rules, {len(RULES) - len(UNPROVEN)} proven" in text


def test_a_filter_narrows_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys, "linear")
    assert "... k, n k, n[k=P] -> ... n" in text
    assert "aten.softmax" not in text


def test_a_filter_that_matches_nothing_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert "no rule for an op with 'zzz' in its name" in output(capsys, "zzz", code=1)


def test_the_ops_of_real_models_are_listed_with_what_serves_them(capsys: pytest.CaptureFixture[str]) -> None:
    rows = {row["op"]: row for row in json.loads(output(capsys, "--coverage", "--json"))}
    assert rows["aten.linear.default"] == {
        "op": "aten.linear.default",
        "models": 75,
        "tier": "table",
        "factors": "... k, n k, n[k=P] -> ... n",
    }
    assert "by its shapes" in output(capsys, "--coverage", "masked_scatter")
