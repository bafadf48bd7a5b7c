"""What `meshwright plan` answers: the recommendation first, progress on the way, the best so far when stopped."""

from __future__ import annotations

import io
import json
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from commands import run_quick
from small_models import small_model

import meshwright
from meshwright.capture import capture
from meshwright.capture.optimizer import STATES
from meshwright.capture.precision import PRECISIONS as CAPTURED
from meshwright.cli import COMMANDS, main
from meshwright.cli.answer import answer, details, pins_cost, recipes
from meshwright.cli.options import OPTIMIZERS, PRECISIONS, precision_for
from meshwright.cluster import load_cluster
from meshwright.errors import PlanError
from meshwright.explain.recipes import Baseline
from meshwright.explain.recommend import recommendation
from meshwright.explain.words import headline
from meshwright.plan import Plan
from meshwright.planner.interrupt import STOP
from meshwright.planner.plan import make_plan
from meshwright.planner.progress import EVERY_S, Progress
from meshwright.planner.search_log import SearchRecorder
from meshwright.sizes import parse_bytes

SMALL = "gpt?layers=1&hidden=32&heads=4&ffn=64&vocab=128&seq=16"


def test_the_recommendation_comes_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, found = str(tmp_path / "plan.json"), str(tmp_path / "summary.json")
    words = ["plan", SMALL, "--global-batch", "8", "--cluster", "local:2", "--pin", "dp=2", "--pin", "zero=3"]
    words += ["--pin", "pp=1", "-o", path]
    assert main([*words, "--json", found]) == 0
    shown = capsys.readouterr()
    lines = shown.out.splitlines()
    assert lines[0].startswith("gpt?layers=1")
    assert "on 2 x cpu: FSDP (ZeRO-3) over 2" in lines[0]
    assert lines[1].startswith("step ")
    assert " of 8 sequences of 16 tokens, " in lines[1]
    assert "tokens/s" in lines[1]
    assert "no step was measured on cpu" in lines[1]
    assert lines[2].startswith("memory ")
    assert lines[3].startswith("run it: meshwright train ")
    assert lines[5].startswith("recipes people know")
    assert lines[6].split() == ["step", "memory", "micro-batches"]
    fsdp = next(line for line in lines if line.lstrip().startswith("FSDP (ZeRO-3) "))
    assert fsdp.split()[2:] == lines[7].split()[2:]  # one configuration has one time, memory, number of micro-batches
    rows = lines[lines.index("a row as a plan of its own:") :]
    pins = "--pin dp=2 --pin zero=3 --pin microbatch=1 --pin recompute=keep"
    assert [line.split(maxsplit=2)[2] for line in rows if line.startswith("  FSDP (ZeRO-3) ")] == [pins]
    assert "; within " in lines[1]
    assert "% of the best that its pins allow (" in lines[1]
    assert "capturing" in shown.err
    command = next(line for line in lines if line.startswith("what the best plan without them takes"))
    assert main(shlex.split(command.partition(": meshwright ")[2])) == 0
    assert "step" in capsys.readouterr().out  # without pins another plan is faster
    assert json.loads(Path(found).read_text())["recommendation"].startswith("FSDP (ZeRO-3) over 2")
    assert main([*words, "--quiet"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert len(shown.out.splitlines()) == 5


def test_pins_cost_what_a_recipe_without_them_shows() -> None:
    plan = make_plan(capture(*small_model("gpt")), load_cluster("local:2"), pins=("dp=2", "zero=3", "pp=1"))
    step_s, peak_bytes = plan.predicted.step_s, plan.predicted.peak_bytes
    slow, none = Baseline("TP", (), 2 * step_s, peak_bytes, True), Baseline("HSDP", why="one host")
    large, fast = (Baseline(name, (), step_s / 2, peak_bytes, fits) for name, fits in (("DDP", False), ("TP", True)))
    assert pins_cost(plan, [slow, none, large], None).startswith("none of these recipes, which are without your pins")
    assert pins_cost(plan, [none, large], None).splitlines()[0].endswith("(dp=2, zero=3, pp=1), fits")
    said = pins_cost(plan, [slow, none, large, fast], "a b.json", "mine.toml")
    assert said.startswith("your pins (dp=2, zero=3, pp=1) cost at least 100.0%: TP takes ")
    assert said.endswith("explain 'a b.json' --what-if dp= --what-if zero= --what-if pp= --cluster mine.toml")


def test_one_plan_has_one_headline() -> None:
    """By bytes, where the plan came from a file too: biases are many and weigh nothing."""
    program = capture(*small_model("gpt"), precision="mixed")
    plan = make_plan(program, load_cluster("local:2"), precision="mixed", pins=("dp=2", "zero=3", "pp=1"))
    entries = {
        name: replace(entry, storage="[I]", reshard_after_forward=False) if name.endswith("bias") else entry
        for name, entry in plan.parameters.items()
    }
    plan = Plan.from_json(replace(plan, parameters=entries).to_json())
    assert ": FSDP (ZeRO-3) over 2;" in repr(plan)
    assert answer(plan, program, None).splitlines()[0].endswith(": FSDP (ZeRO-3) over 2")
    assert "the loss is computed in bfloat16: the model does not cast" in details(plan, program)
    assert "are stored in float32" in details(plan, program)


def test_weights_that_data_parallel_devices_split_are_named() -> None:
    """FSDP with a tensor-parallel head is another plan than FSDP."""
    program = capture(*small_model("gpt"))
    plan = make_plan(program, load_cluster("local:2"), pins=("dp=2", "zero=3", "pp=1"))
    name = max(plan.weight_bytes, key=lambda one: plan.weight_bytes[one])
    entry = replace(plan.parameters[name], compute="[S(0)]", storage="[S(0)]", reshard_after_forward=False)
    other = replace(plan, parameters=plan.parameters | {name: entry})
    assert "tensor parallel" not in headline(plan)
    assert headline(other).endswith(f" + tensor parallel {name}")


def test_more_positions_than_were_published_are_said() -> None:
    plan = make_plan(capture(*small_model("mlp")), load_cluster("local:1"))
    for model, said in {
        "gpt2?layers=2&seq=4096": "note: gpt2 has 1,024 positions; planned with 4,096",
        "bert-large?seq=1024": "note: bert-large has 512 positions; planned with 1,024",
    }.items():
        assert recommendation(replace(plan, model=model))[3] == said
    for model in ("gpt2", "gpt2?seq=512", "gpt?seq=4096", "mixtral-8x7b?seq=32768", "file.py:gpt2", ""):
        assert len(recommendation(replace(plan, model=model))) == 3


def test_more_memory_than_a_device_has_is_said() -> None:
    plan = replace(make_plan(capture(*small_model("mlp")), load_cluster("h100:1")), memory_bytes=90 << 30, headroom=0.0)
    plan = plan.with_prediction(host_s=0.0)
    assert recommendation(plan)[3].startswith("note: 90 GiB of memory were given; a device has 78.1 GiB to allocate")
    above = make_plan(capture(*small_model("mlp")), load_cluster("h100:1"), memory_bytes=90 << 30)
    assert "3% of it left free as without a limit" in "".join(recommendation(above))
    assert " of 75.8 GiB per device" in recommendation(above)[2]
    assert len(recommendation(replace(plan, memory_bytes=70 << 30))) == 3
    assert " of 18.6 GiB (20 GB) per device" in recommendation(replace(plan, memory_bytes=20 * 10**9))[2]


def test_pins_that_say_nothing_on_one_device_are_named() -> None:
    program = capture(*small_model("mlp"))
    plan = make_plan(program, load_cluster("local:1"), pins=("zero=3",))
    assert "note: zero=3 changes nothing on one device: there is no other to shard over" in recommendation(plan)
    assert not any("zero=3" in line for line in recommendation(make_plan(program, load_cluster("local:1"))))


def test_a_batch_that_was_assumed_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", SMALL, "--cluster", "local:1", "--quiet"]
    assert main(words) == 0
    assert "note: a global batch of 8 is assumed; which plan is fastest depends on it" in capsys.readouterr().out
    assert main([*words, "--global-batch", "8"]) == 0
    assert "assumed" not in capsys.readouterr().out


def test_the_table_says_why_two_stages_of_zero_are_alike() -> None:
    plan = make_plan(capture(*small_model("mlp")), load_cluster("local:2"), pins=("dp=2",))
    rows = [Baseline(name, (), 1.0, 1, True, microbatches=1) for name in ("ZeRO-1", "ZeRO-2")]
    assert "ZeRO-1 and ZeRO-2 are the same in one micro-batch" in recipes(plan, rows)
    assert "are the same" not in recipes(plan, [replace(row, microbatches=2) for row in rows])


def test_stopped_by_ctrl_c_it_gives_the_best_so_far() -> None:
    program, cluster = capture(*small_model("gpt")), load_cluster("local:4")
    found: list[str] = []

    def ask(line: str) -> None:
        found.append(line)
        STOP.requested = True

    try:
        stopped = make_plan(program, cluster, on_incumbent=ask)
    finally:
        STOP.requested = False
    whole = make_plan(program, cluster)
    assert len(found) == 1
    assert stopped.predicted.gap == 1.0  # no bound was proven
    assert stopped.search_log.interrupted
    assert "stopped    the search: interrupted: the best plan found so far" in str(stopped.search_log)
    loaded = Plan.from_json(stopped.to_json())
    for shown in ("\n".join(recommendation(loaded)), loaded._repr_html_()):
        assert "the search was interrupted, a longer one may find a faster plan" in shown
    assert not whole.search_log.interrupted
    assert whole.predicted.gap < 1.0
    assert stopped.predicted.step_s >= whole.predicted.step_s


def test_ctrl_c_before_a_plan_was_found_ends_the_search() -> None:
    with STOP.by_ctrl_c(print), STOP.searching(), pytest.raises(KeyboardInterrupt, match="no plan was found yet"):
        signal.raise_signal(signal.SIGINT)
    said: list[str] = []
    with STOP.by_ctrl_c(said.append), STOP.searching():
        SearchRecorder(stop=STOP).incumbent("mesh 8", 1.0)
        signal.raise_signal(signal.SIGINT)
        assert STOP.requested
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert said == ["stopping with the best plan so far (Ctrl-C again: at once)"]


def test_progress_is_repeated_with_what_was_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EVERY_S, False, 0.05)
    stream = io.StringIO()
    with Progress(True, stream, quiet_s=0.02, prefix="meshwright: ") as progress:
        progress.doing("searching")
        assert stream.getvalue() == ""  # what is quick says nothing
        progress.on_node("mesh 8, 1 micro-batch")
        time.sleep(0.3)
    lines = stream.getvalue().splitlines()
    assert len(lines) > 2
    assert all(line.startswith("meshwright: ") for line in lines)
    assert lines[-1].endswith("searching (1 looked at, last mesh 8, 1 micro-batch)")


def test_progress_is_written_where_there_is_no_terminal() -> None:
    stream = io.StringIO()
    with Progress(True, stream) as progress:
        progress.doing("capturing")
        progress.found("4 x 2: 1 s")
    assert "capturing" in stream.getvalue()
    assert progress.lines[0][1] == "4 x 2: 1 s"


MISTAKES = [
    (["plan", "gtp"], "did you mean gpt?"),
    (["plan", "gpt", "--set", "layer=2"], "did you mean layers?"),
    (["plan", "gpt", "--memory", "80"], "write 80GiB if you mean gibibytes"),
    (["plan", "gpt", "--memory", "-5GiB"], "memory '-5GiB'"),
    (["plan", "gpt", "--precision", "fp8"], "fp32, float32, bf16"),
    (["plan", "gpt", "--optimizer", "lion"], "adamw"),
    (["plan", "nothere.py:model"], "check the path"),
    (["train", "gtp"], "did you mean gpt?"),
    (["train", "gpt", "--plan", "nothere.json"], "nothere.json cannot be read"),
    (["explain", "nothere.json"], "nothere.json cannot be read"),
    (["plan", "gpt", "--cluster", "h10:8"], "did you mean h100"),
    (["plan", "gpt", "--pin", "tpp=2"], "did you mean tp=2 or pp=2?"),
    (["plan", "gpt", "--pin", "tp=2,zero=3"], "give each by itself: --pin tp=2 --pin zero=3; in Python as a list"),
    (["plan", "gpt", "--pin", "fsdp=8"], "did you mean zero=3?"),
    (["plan", "gpt", "--pin", "recompute=selectiv"], "did you mean selective?"),
]


@pytest.mark.parametrize(("words", "said"), MISTAKES)
def test_mistakes_are_refused_before_torch_is_there(words: list[str], said: str) -> None:
    found = run_quick(words, cpu_s=0.3)
    assert found.returncode == 2
    assert said in found.stderr


def test_a_cluster_that_is_not_known_needs_no_torch() -> None:
    script = "import sys; from meshwright.cli import main; main(sys.argv[1:]); print('torch' in sys.modules)"
    words = ["plan", "gpt", "--cluster", "moon"]
    found = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, check=True)
    assert found.stdout == "False\n"
    assert "'moon'" in found.stderr


def test_version_and_words_agree_with_what_they_stand_for(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"meshwright {meshwright.__version__}\n"
    assert set(OPTIMIZERS) == set(STATES)
    assert set(PRECISIONS.values()) == set(CAPTURED)


def test_gpus_compute_in_mixed_precision_unless_told() -> None:
    from argparse import Namespace

    asked = Namespace(precision=None)
    assert precision_for(asked, load_cluster("h100:8")) == "mixed"
    assert precision_for(asked, load_cluster("local:2")) == "fp32"
    assert precision_for(asked, load_cluster("v100:2")) == "fp32"
    assert precision_for(Namespace(precision="bf16-mixed"), load_cluster("local:2")) == "mixed"


@pytest.mark.parametrize("given", ["80", 80, "80.5"])
def test_bare_numbers_are_refused_with_what_was_probably_meant(given: str | int) -> None:
    with pytest.raises(PlanError, match=r"without a unit(.|\n)*write 80(\.5)?GiB"):
        parse_bytes(given)
    assert parse_bytes("80GiB") == 80 << 30
    with pytest.raises(PlanError, match=r"^memory '0'\n  expected: a positive size"):
        parse_bytes("0")
    assert parse_bytes(1 << 33) == 1 << 33


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["plan", "gpt2", "--gap", "2%"], "meshwright: plan: --gap '2%'\n  expected: a number such as 0.02"),
        (["plan", "gpt2", "--global-batch", "two"], "--global-batch 'two'\n  expected: a whole number"),
        (["plan", "gpt2", "--memory"], "--memory without a value\n  expected: one behind it"),
        (["plan", "gpt2", "--clusters", "h100:8"], "unknown: --clusters h100:8"),
        (["price", "gpt2"], "nothing given for --cluster"),
        (["plans", "gpt2"], "plans"),
        ([], "nothing given for COMMAND"),
    ],
)
def test_mistakes_on_the_command_line_are_one_message(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    shown = capsys.readouterr().err
    assert said in shown
    assert "--help`" in shown
    assert len(shown.splitlines()) <= 3


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_helps(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    if "--json" in shown:
        assert "--json [FILE]" in shown
