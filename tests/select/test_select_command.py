"""`meshwright solve`: what it prints, what it returns, what it refuses."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from meshwright.errors import ProblemError
from meshwright.select import ProblemBuilder, command
from meshwright.select.contest import dump


def run(*words: str) -> int:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    args = parser.parse_args(words)
    code: int = args.run(args)
    return code


@pytest.fixture
def instance(tmp_path: Path) -> str:
    build = ProblemBuilder("pair")
    a, b = build.node([4.0, 1.0]), build.node([0.0, 2.0])
    build.edge(a, b, [[0.0, 9.0], [9.0, 1.0]])
    dump(build.build(), tmp_path / "pair.json.gz")
    return str(tmp_path / "pair.json.gz")


def test_json_has_the_fields_that_scripts_rely_on(instance: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(instance, "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["cost"] == result["bound"] == 4.0
    assert result["gap"] == 0.0
    assert result["method"] == "auto"
    assert result["choice"] in ([0, 0], [1, 1])
    assert result["seconds"] > 0


def test_text_names_the_problem_and_the_result(instance: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(instance, "--seconds", "5", "--method", "ilp") == 0
    text = capsys.readouterr().out
    assert "pair: 2 nodes, 1 edges, 0 rows" in text
    assert "cost 4, bound 4, gap 0.000%" in text


def test_a_missing_file_and_an_unknown_method_are_refused(instance: str) -> None:
    with pytest.raises(ProblemError, match=r"no file nowhere\.json"):
        run("nowhere.json")
    with pytest.raises(ProblemError, match="'annealing'"):
        run(instance, "--method", "annealing")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--seconds", "0"], "0.0 seconds"),
        (["--seconds", "nan"], "nan seconds"),
        (["--work", "-1"], "-1.0 million steps"),
        (["--gap", "-0.5"], "gap of -0.5"),
        (["--gap", "2"], "(?s)gap of 2.0.*to do: "),
        (["--gap", "nan"], "gap of nan"),
        (["--seed", "-1"], "seed -1"),
    ],
)
def test_limits_that_mean_nothing_are_refused_before_anything_is_read(words: list[str], message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        run("nowhere.json", *words)


def test_a_file_of_another_kind_is_refused_with_what_writes_one(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    for text, said in (
        ('{"schema": 3, "stages": [], "choices": []}', "is a plan"),
        ("[1]", "is not a selection problem"),
    ):
        path.write_text(text)
        with pytest.raises(ProblemError, match=f"(?s)m.json ({said}).*a selection problem .*--dump-problem FILE"):
            run(str(path))


def test_every_refusal_says_what_to_do() -> None:
    assert "to do: correct the problem" in str(ProblemError("a node without options", "one or more"))


def test_a_damaged_file_is_named(instance: str, tmp_path: Path) -> None:
    whole = Path(instance).read_bytes()
    for name, raw in (("half", whole[: len(whole) // 2]), ("flipped", whole[:20] + b"\xff\xff\xff" + whole[23:])):
        path = tmp_path / f"{name}.json.gz"
        path.write_bytes(raw)
        with pytest.raises(ProblemError, match=f"{name}.json.gz is a damaged gzip file"):
            run(str(path))
