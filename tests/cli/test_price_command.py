"""`meshwright price`: a configuration, without search."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import meshwright as mw
from meshwright.cli import main
from meshwright.pins.of_price import PINS

GIVEN = ["price", "llama3-8b", "--cluster", "h100:8", "--global-batch", "64", "--pin", "tp=2"]


def test_options_of_plan_are_those_of_price_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*GIVEN, "--seq", "4096", "--precision", "fp16"]) == 0
    shown = capsys.readouterr().out
    assert "tp=2" in shown
    assert main([*GIVEN, "--set", "seq=4096", "--pin", "precision=fp16"]) == 0
    assert capsys.readouterr().out == shown
    assert main(GIVEN) == 0
    mixed = capsys.readouterr().out
    assert mixed != shown
    assert main([*GIVEN, "--precision", "bf16-mixed"]) == 0
    assert capsys.readouterr().out == mixed


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--seq", "0"), "seq=0"),
        (("--seq", "4096", "--set", "seq=2048"), "settings seq=2048 and seq=4096 of llama3-8b"),
        (("--set", "layers=4", "--set", "layers=8"), "settings layers=4 and layers=8"),
        (("--global-batch", "0"), "--global-batch 0"),
        (("--pin", "global_batch=8"), "a global batch of 64 and the pin global_batch=8"),
        (("--precision", "fp7"), "precision=fp7"),
        (("--pin", "microbatch=8"), "micro_batch=SIZE"),
        (("--pin", "pp=2", "--pin", "schedule=interleaved", "--pin", "vpp=1"), "schedule=interleaved and vpp=1"),
        (("--pin", "pp=2", "--pin", "schedule=interleaved"), "schedule=interleaved for vpp=2 or more"),
        (("--pin", "pp=2", "--pin", "schedule=1f1b", "--pin", "vpp=2"), "schedule=1f1b and vpp=2"),
    ],
)
def test_bad_ones_are_refused(given: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*GIVEN, *given]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("model", "cluster", "pins", "said"),
    [
        (
            "mixtral-8x7b",
            "h100:8",
            ("tp=4", "ep=4"),
            "ep=4 with dp=2 cp=1 and 8 experts\n  expected: a divisor of dp*cp, here 2",
        ),
        ("llama3-8b", "h100:8", ("ep=2",), "ep=2 of a model without experts"),
        ("llama3-8b", "h100:8x8", ("tp=64",), "tp=64 for 32 heads\n  expected: a divisor of 32\n  to do: change tp"),
        ("llama3-8b", "h100:3", ("cp=3",), "cp=3 for 8192 positions of a sequence\n"),
        ("llama3-8b", "h100:8", ("tp=64",), "64 devices\n  expected: the cluster's 8\n  to do: change tp\n"),
    ],
)
def test_a_size_that_does_not_divide_is_named(
    model: str, cluster: str, pins: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["price", model, "--cluster", cluster, *(word for pin in pins for word in ("--pin", pin))]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("pins", "said", "run_layers"),
    [
        (("pp=2",), "  layers  4+4, dealt evenly, where `plan` weighs them", [4, 4]),
        (("pp=2", "layers=5+3"), "  layers  5+3, as pinned\n", [5, 3]),
        (("pp=2", "stage_layers=5+3"), "  layers  5+3, as pinned\n", [5, 3]),
        (("pp=2", "vpp=2"), "  layers  2+2+2+2, dealt evenly in runs that go round 2 stages\n", [2, 2, 2, 2]),
        (("zero=3",), "", [8]),
    ],
)
def test_how_layers_are_dealt_is_said(
    pins: tuple[str, ...], said: str, run_layers: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["price", "gpt?layers=8", "--cluster", "h100:2", *(word for pin in pins for word in ("--pin", pin))]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert said in shown
    assert ("\n  layers  " in shown) == bool(said)
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["run_layers"] == run_layers


def test_the_layers_of_plan_are_one_pin_with_stage_layers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*GIVEN, "--pin", "pp=2", "--pin", "layers=20+12", "--pin", "stage_layers=18+14"]) == 2
    assert "pins stage_layers=20+12 and stage_layers=18+14" in capsys.readouterr().err
    assert main([*GIVEN, "--pin", "pp=2", "--pin", "layers=20+13"]) == 2
    assert "numbers whose sum is 32" in capsys.readouterr().err


def test_the_answer_as_json_is_what_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*GIVEN, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["model"], found["cluster"], found["fits"], found["notes"]) == ("llama3-8b", "h100:8", False, [])
    given = found["configuration"]
    assert (given["dp"], given["tp"], given["microbatches"], given["precision"]) == (4, 2, 16, "mixed")
    assert found["predicted"]["step_s"] == mw.price("llama3-8b", "h100:8", "tp=2", global_batch=64).step_s
    assert main([*GIVEN, "--json", str(tmp_path / "out.json")]) == 0
    assert capsys.readouterr().out.startswith("llama3-8b on h100:8: dp=4 tp=2")
    assert json.loads((tmp_path / "out.json").read_text()) == found
    assert main([*GIVEN, "--json", str(tmp_path / "nope" / "out.json")]) == 2
    assert "no folder" in capsys.readouterr().err


def test_the_headline_says_what_was_priced(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["price", "llama3-8b?seq=1024", "--cluster", "h100:8", "--seq", "4096"]) == 0
    assert capsys.readouterr().out.startswith("llama3-8b?seq=4096 on h100:8: ")


@pytest.mark.parametrize("precision", ["fp8", "fp8-rows"])
@pytest.mark.parametrize(
    ("cluster", "name"), [("a100:8", "A100-SXM-80GB"), ("v100-32gb:8", "V100-SXM2-32GB"), ("mi250x:8", "MI250X")]
)
def test_float8_is_refused_where_there_are_no_units(
    cluster: str, name: str, precision: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for given in (("--precision", precision), ("--pin", f"precision={precision}")):
        assert main(["price", "llama3-8b", "--cluster", cluster, *given]) == 2
        assert f"precision={precision} on {name}, without units for float8" in capsys.readouterr().err


def test_the_batch_that_is_assumed_is_that_of_a_plan_and_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["price", "gpt", "--cluster", "h100:2"]) == 0
    shown = capsys.readouterr().out
    assert "(4 micro-batches of a batch of 8)" in shown
    assert "note: a global batch of 8 is assumed" in shown
    for given in (("--global-batch", "2"), ("--pin", "global_batch=2"), ("--pin", "batch=2")):
        assert main(["price", "gpt", "--cluster", "h100:2", *given]) == 0
        shown = capsys.readouterr().out
        assert "(1 micro-batch of a batch of 2)" in shown
        assert " ms, " in shown
        assert "assumed" not in shown


def test_what_was_set_and_what_changes_a_step_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(GIVEN) == 0
    shown = capsys.readouterr().out
    assert "sp=off recompute=none precision=mixed attention=flash\n" in shown
    assert "context=" not in shown
    assert main([*GIVEN, "--pin", "pp=2", "--pin", "cp=2", "--pin", "contention=on", "--pin", "offload=1+0"]) == 0
    shown = capsys.readouterr().out
    assert "sp=off schedule=1f1b recompute=none precision=mixed attention=flash offload=1+0 context=ring" in shown
    assert "contention=on\n" in shown
    assert "of the host's memory" in shown


def test_help_explains_every_pin_and_the_batch(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["price", "--help"])
    shown = capsys.readouterr().out
    assert all(f"  {example} " in shown for example, _ in PINS.values())
    assert "next multiple of" in shown


def test_pins_of_a_row_of_recipes_are_known(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*GIVEN, "--pin", "pp=2", "--pin", "recompute=none"]) == 0
    shown = capsys.readouterr().out
    assert main([*GIVEN, "--pin", "pp=4+4", "--pin", "recompute=keep"]) == 0
    assert capsys.readouterr().out == shown
    assert "estimate" in shown
