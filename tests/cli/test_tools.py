"""`fits`, `doctor`, `completion`, and what `simulate` and `code` write of a plan."""

from __future__ import annotations

import json
import pickle
import signal
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import pytest

from meshwright.cli import COMMANDS, main
from meshwright.cli.answer import ROUGH
from meshwright.cli.fits import _clocks
from meshwright.cluster import load_cluster
from meshwright.explain.recipes import Baseline

SMALL = "gpt?layers=1&hidden=32&heads=4&ffn=64&vocab=128&seq=16"


def test_fits_says_where_a_model_can_be_trained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fits", SMALL, "--gpus", "4090,h200", "--counts", "1,2"]) == 0
    first, *lines, fewest, pace, clocks, further = capsys.readouterr().out.splitlines()
    assert "global batch " in first
    assert pace.startswith("host-bound: the host needs longer to launch the kernels")
    assert fewest == "fewest that fit by a recipe: 4090:1, h200:1"
    assert clocks.startswith("h200: at the lower clocks that long steps were measured to run at; the others have none")
    assert further.endswith(f"meshwright plan '{SMALL}' --cluster {fastest(lines)}")
    assert [line.split()[:2] for line in lines] == [[f"{gpu}:{n}", "fits"] for gpu in ("4090", "h200") for n in (1, 2)]
    assert lines[0].endswith(" batch 8 in 1  one GPU (host-bound): --pin recompute=keep --pin microbatch=1")
    assert lines[1].endswith("--pin microbatch=1 --pin recompute=keep")
    assert main(["fits", SMALL, "--gpus", "h100", "--counts", "1", "--memory", "64KiB", "--json"]) == 1
    (row,) = json.loads(capsys.readouterr().out)
    assert row["fits"] is False
    assert row["why"].startswith("weights, gradients and optimizer state take ")
    assert row["why"].endswith(", it has 64 KiB")
    assert main(["fits", SMALL, "--gpus", "h100", "--counts", "2", "--memory", "120KiB"]) == 1
    _, line, still_open, further = capsys.readouterr().out.splitlines()
    why = "not in 120 KiB of each, not even with full checkpointing; a searched plan may"
    assert line == f"h100:2       no recipe fits: {why}"
    assert still_open == "not decided by recipes: h100:2; `meshwright plan` with that --cluster searches further"
    assert further.startswith("more GPUs: --counts 2x8,4x8; ")


def test_fits_marks_memory_that_only_a_search_has_counted(capsys: pytest.CaptureFixture[str]) -> None:
    searched = [Baseline("TP", ("tp=2",), 1e-3, 3 << 20, True, microbatches=1, rough=True)]
    with patch("meshwright.explain.recipes.baselines", lambda *_, **__: searched):
        assert main(["fits", SMALL, "--cluster", "h100:2"]) == 0
    _, line, *said = capsys.readouterr().out.splitlines()
    assert "  ~3 MiB  " in line
    assert ROUGH in said


def test_fits_says_nothing_of_clocks_where_kinds_are_priced_alike() -> None:
    known, unknown = load_cluster("h200:1"), load_cluster("4090:2")
    assert _clocks([known]) == _clocks([unknown]) == []
    (line,) = _clocks([unknown, known])
    assert not any(letter.isdigit() for letter in line.partition(":")[2]), "nobody has measured by how much"


def test_fits_takes_one_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fits", SMALL, "--cluster", "h100:2"]) == 0
    _, line, *_, further = capsys.readouterr().out.splitlines()
    assert line.startswith("h100:2 ")
    assert "~" not in line, "DDP is predicted as a plan"
    assert further.endswith("--cluster h100:2")
    assert main(["fits", SMALL, "--cluster", "h100:2", "--counts", "4"]) == 2
    assert "--cluster with --gpus or --counts" in capsys.readouterr().err


def test_fits_takes_a_batch_that_the_devices_divide_or_says_that_they_do_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["fits", SMALL, "--gpus", "h100", "--counts", "3"]) == 0
    _, line, *_, further = capsys.readouterr().out.splitlines()
    assert " batch 9 " in line
    assert "slow" not in line
    assert main(["fits", SMALL, "--gpus", "h100", "--counts", "3", "--global-batch", "8"]) == 0
    _, line, *_, further = capsys.readouterr().out.splitlines()
    assert "(slow: 8 samples are not shared evenly, see --global-batch)" in line
    assert "--global-batch 8" in further


def fastest(lines: list[str]) -> str:
    return max(lines, key=lambda line: float(line.split()[2].replace(",", ""))).split()[0]


OWN = """
import torch
from torch import nn
def build():
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
    return model, (torch.empty(6, 8),), lambda y, x: (y - x).square().mean()
"""


def test_plans_of_a_module_of_ones_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(OWN)
    assert main(["plan", "mine.py:build", "--cluster", "local:2", "--pin", "pp=1", "-o", "plan.json"]) == 0
    shown = capsys.readouterr().out
    assert "global batch 6" in shown, "the rows that the function's batch has"
    assert shown.count("samples/s") == 2
    assert "tokens" not in shown
    found = json.loads(Path("plan.json").read_text())
    Path("python.json").write_text(json.dumps(found | {"model": ""}))  # as mw.plan writes it
    for name in ("plan.json", "python.json"):
        for command in ("profile", "code", "simulate"):
            assert main([command, name]) == 2
            assert "add --model" in capsys.readouterr().err
            assert main([command, name, "--model", "mine.py:build"]) == 0
            capsys.readouterr()
    assert main(["simulate", "plan.json", "--model", SMALL]) == 2
    assert "another model" in capsys.readouterr().err


def test_fits_refuses_what_it_cannot_count(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fits", SMALL, "--counts", "1,two"]) == 2
    assert "--counts 1,two" in capsys.readouterr().err


def test_the_doctor_runs_a_step_and_says_what_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    found = {row["what"]: row for row in json.loads(capsys.readouterr().out)}
    assert found["a planned step"]["works"] is True
    assert found["torch is supported"]["works"] is True


def test_completion_is_a_script_that_bash_takes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    asked = 'COMP_WORDS=(meshwright plan --rep); COMP_CWORD=2; _meshwright; echo "${COMPREPLY[@]}"'
    found = subprocess.run(["bash", "-c", f"{script}\n{asked}"], capture_output=True, text=True, check=True)
    assert found.stdout == "--report\n"
    for shell in ("zsh", "fish"):
        assert main(["completion", shell]) == 0
        assert all(name in capsys.readouterr().out for name in list(COMMANDS)[:1])


def test_a_snapshot_holds_what_the_simulator_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan, path = str(tmp_path / "plan.json"), tmp_path / "memory.pickle"
    words = ["plan", SMALL, "--cluster", "local:2", "--pin", "pp=2", "--pin", "microbatch=2", "-o", plan, "--quiet"]
    assert main(words) == 0
    assert main(["simulate", plan, "--memory-snapshot", str(path)]) == 0
    shown = capsys.readouterr().out
    traces = pickle.loads(path.read_bytes())["device_traces"]
    assert len(traces) == 2
    peaks = []
    for trace in traces:
        held = peak = 0
        alive: dict[int, int] = {}
        for event in trace:
            if event["action"] == "alloc":
                assert event["addr"] not in alive
                alive[event["addr"]] = event["size"]
                held += event["size"]
            elif event["action"] == "free_completed":
                held -= alive.pop(event["addr"])
            peak = max(peak, held)
        peaks.append(peak)
    from meshwright.plan import Plan
    from meshwright.plan.origin import program_of
    from meshwright.predict.simulated import simulate_plan

    loaded = Plan.load(plan)
    timeline = simulate_plan(loaded, program_of(loaded, plan))
    assert peaks == [stage.peak_bytes for stage in timeline.stages]
    assert "snapshot written" in shown
    assert any("forward of" in event["frames"][0]["name"] for event in traces[0])


def test_printed_code_has_the_plans_own_cluster_and_device(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = str(tmp_path / "plan.json")
    assert main(["plan", SMALL, "--cluster", "h100:2", "--pin", "pp=1", "--pin", "dp=2", "-o", plan, "--quiet"]) == 0
    capsys.readouterr()
    assert main(["code", plan]) == 0
    shown = capsys.readouterr().out
    assert 'load_cluster("h100:2")' in shown
    assert 'torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))' in shown
    compile(shown, "plan", "exec")


@pytest.mark.full
def test_selftest_on_two_ranks_is_right(tmp_path: Path) -> None:
    out = tmp_path / "checks.json"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    words = ["-m", "meshwright", "selftest", "--megabytes", "1", "--json", str(out)]
    found = subprocess.run([*command, *words], capture_output=True, text=True, timeout=300)
    assert found.returncode == 0, found.stderr[-2000:]
    rows = {row["what"]: row for row in json.loads(out.read_text())}
    assert list(rows) == ["all-reduce", "all-gather", "reduce-scatter", "all-to-all", "loss", "gradients", "step"]
    assert all(row["right"] for row in rows.values())
    assert "GB/s" in rows["all-gather"]["found"]


def test_selftest_asks_for_torchrun(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["selftest"]) == 2
    assert "torchrun --nproc-per-node=2 -m meshwright selftest" in capsys.readouterr().err


ENDING = """
import atexit, os, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
from meshwright.cli import main
atexit.register(lambda: (os.kill(os.getpid(), signal.SIGINT), time.sleep(60)))
sys.argv = ["meshwright", "--version"]
sys.exit(main())
"""


def test_ctrl_c_while_a_command_ends_is_quiet() -> None:
    ended = subprocess.run([sys.executable, "-c", ENDING], capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stderr) == (-signal.SIGINT, "")


def test_a_plan_is_profiled_at_its_own_sizes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = str(tmp_path / "plan.json")
    assert main(["plan", SMALL, "--cluster", "local:1", "--quiet", "-o", plan]) == 0
    capsys.readouterr()
    for option in ("--batch", "--seq"):
        assert main(["profile", plan, option, "3"]) == 2
        assert f"{option} with a plan file" in capsys.readouterr().err


def test_fits_takes_a_gpu_of_ones_own_and_refuses_figures_that_none_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "mine.toml"
    text = (
        'name = "mine"\nbackend = "nccl"\n[device.x900]\nmemory = "48GB"\nmemory_bandwidth = "1.1TB/s"\n'
        'peaks = { bfloat16 = "330T" }\n[level.pcie]\nbandwidth = "32GB/s"\n[[host]]\ndevice = "x900"\ndevices = 2\n'
    )
    mine.write_text(text)
    assert main(["fits", SMALL, "--gpus", str(mine)]) == 0
    _, line, fewest, *_ = capsys.readouterr().out.splitlines()
    assert line.split()[:2] == ["mine", "fits"]
    assert fewest == "fewest that fit by a recipe: mine"
    mine.write_text(text.replace("1.1TB/s", "1.1GB/s"))
    assert main(["fits", SMALL, "--gpus", str(mine)]) == 2
    assert 'probably "1.1TB/s" was meant' in capsys.readouterr().err
