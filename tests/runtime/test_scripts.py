"""The scripts that `meshwright launch` writes: for the hosts of the plan, in words that their readers take."""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest
from torch.distributed.elastic.multiprocessing import PContext

from meshwright.cli import main
from meshwright.runtime.job import elastic
from meshwright.runtime.job.launch import SAVING_S

MODEL = "gpt?layers=1&hidden=16&heads=2&ffn=32&vocab=128&seq=16"


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found = {}
    for cluster in ("local:2", "dgx-h100:2"):
        found[cluster] = tmp_path_factory.mktemp("plans") / f"{cluster.replace(':', '-')}.json"
        pins = ["--pin", "dp=2"] if cluster == "local:2" else ["--pin", "dp=16"]
        place = ["--cluster", cluster, "--global-batch", "16", *pins, "--quiet", "-o", str(found[cluster])]
        assert main(["plan", MODEL, *place]) == 0
    return found


def script(capsys: pytest.CaptureFixture[str], plan: Path, kind: str) -> str:
    capsys.readouterr()
    assert main(["launch", str(plan), "--print", kind, "--train=--steps 3"]) == 0
    return capsys.readouterr().out


def test_the_number_of_steps_is_said(plans: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    words = ["launch", str(plans["dgx-h100:2"]), "--print", "slurm"]
    assert main(words) == 0
    shown = capsys.readouterr()
    assert "# It trains 40 steps, unless --steps says how many.\n" in shown.out
    assert shown.err.endswith("meshwright: this trains 40 steps; --steps N for another number\n")
    assert main([*words, "--steps", "500"]) == 0
    shown = capsys.readouterr()
    assert "--steps 500" in shown.out
    assert "40 STEPS" not in shown.out
    assert main([*words, "--steps", "500", "--train=--steps 3"]) == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--stpes 3", "unrecognized arguments: --stpes 3"),
        ("--steps", "expected one argument"),
        ("--steps many", "invalid int value: 'many'"),
        ("--steps 0", "--steps 0"),
        ("--every 5", "--every without --checkpoint-dir"),
        ("--global-batch 8", "--global-batch 8 with a plan for 16"),
        ("--nproc 3", "3 processes for a plan of 2"),
        ("--plan other.json", "--plan other.json"),
        ("--data 'half", "No closing quotation"),
        ("llama", "unrecognized arguments: llama"),
    ],
)
def test_options_are_refused_before_the_script_is_written(
    words: str, message: str, plans: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(["launch", str(plans["local:2"]), f"--train={words}"]) == 2
    out, error = capsys.readouterr()
    assert message in error
    assert out == ""


@pytest.mark.parametrize("kind", ["torchrun", "slurm", "kubernetes", "ray"])
def test_two_hosts_of_eight(kind: str, plans: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    text = script(capsys, plans["dgx-h100:2"], kind)
    assert "'--steps', '3'" in text or "--steps 3" in text or "- '--steps'\n            - '3'" in text
    if kind == "ray":
        ast.parse(text)
        assert "num_workers=16" in text
    elif kind == "kubernetes":
        assert "completions: 2" in text
        assert "nvidia.com/gpu: 8" in text
        assert not re.search(r"\t", text)
    else:
        subprocess.run(["bash", "-n"], input=text, text=True, check=True)
        assert re.search(r"--nnodes=2 --nproc-per-node=8", text)
        assert "$HEAD:29500" in text


def run_script(text: str, *words: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = os.environ | {"PATH": path, "OMP_NUM_THREADS": "1"}
    command = ["bash", "-s", "--", *words]
    return subprocess.run(command, input=text, text=True, capture_output=True, timeout=240, env=environment)


@pytest.mark.full
def test_what_a_rank_has_said_torchrun_does_not_say_again(
    plans: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_script(script(capsys, plans["local:2"], "torchrun"), "--data", "/nowhere/at/all")
    assert run.returncode == 2
    assert run.stderr.startswith("meshwright: --data /nowhere/at/all is no file")
    assert len(run.stderr.splitlines()) == 3, run.stderr


def test_ranks_have_time_to_save_and_none_to_stand_still(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[int] = []
    monkeypatch.setattr(PContext, "close", lambda self, death_sig, timeout: waited.append(timeout))
    elastic._set_patience()
    PContext.close(cast(PContext, None))
    PContext.close(cast(PContext, None), signal.SIGTERM, 30)
    assert waited == [elastic.ENDING_S, SAVING_S]
    assert elastic.ENDING_S <= 5


@pytest.mark.full
@pytest.mark.parametrize("kind", ["torchrun", "slurm"])
def test_the_local_script_trains(
    kind: str,
    plans: dict[str, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """SLURM's two commands are stood in for: of one host they say and do nothing else."""
    for name, text in {"scontrol": "echo localhost", "srun": 'exec "$@"'}.items():  # as on one host
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "one")
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    out = tmp_path / "run.json"
    run = run_script(script(capsys, plans["local:2"], kind), "--json", str(out))
    assert run.returncode == 0, run.stderr
    assert out.exists()
    assert "on 2 processes" in run.stdout


@pytest.mark.parametrize("kind", ["torchrun", "slurm", "kubernetes"])
def test_a_script_of_ones_own_is_started(
    kind: str, plans: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = json.loads(plans["dgx-h100:2"].read_text())
    (path := tmp_path / "python.json").write_text(json.dumps(plain | {"model": ""}))  # as mw.plan writes it
    assert main(["launch", str(path), "--print", kind]) == 2
    assert "add --script 'YOUR_SCRIPT.py'" in capsys.readouterr().err
    assert main(["launch", str(path), "--print", kind, "--script=mine.py --name 'a b'"]) == 0
    shown = capsys.readouterr().out
    assert "--nproc-per-node=8" in shown
    assert ("- 'a b'" if kind == "kubernetes" else "    mine.py --name 'a b' \"$@\"") in shown
    assert "meshwright train" not in shown
    for more in (["--train=--steps 3"], ["--print", "ray"]):
        assert main(["launch", str(path), "--script=mine.py", *more]) == 2
        assert "one of them" in capsys.readouterr().err


def test_restarts_are_torchruns_and_slurm_goes_on(plans: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    plan = str(plans["dgx-h100:2"])
    assert main(["launch", plan, "--print", "slurm", "--max-restarts", "3", "--train=--steps 9"]) == 0
    shown = capsys.readouterr().out
    assert "--nnodes=2 --nproc-per-node=8 --max-restarts=3 " in shown
    assert "--steps 9 --checkpoint-dir run --every 100 --resume auto" in shown
    assert main(["launch", plan, "--print", "slurm", "--train=--checkpoint-dir mine --every 7"]) == 0
    assert "--checkpoint-dir mine --every 7 --resume auto" in capsys.readouterr().out
    assert main(["launch", plan]) == 0
    assert "--resume" not in capsys.readouterr().out
    for words, said in (
        (["--train=--checkpoint-dir run --max-restarts 3"], "meshwright launch ... --max-restarts 3"),
        (["--max-restarts", "-1"], "0 or more"),
        (["--max-restarts", "1", "--print", "ray"], "restarts by Ray itself"),
    ):
        assert main(["launch", plan, *words]) == 2
        assert said in capsys.readouterr().err


def test_a_slurm_job_saves_and_is_queued_again_before_its_time_is_over(
    plans: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With stand-ins for SLURM's commands: ranks end when `scancel` tells them to, by SIGTERM here, as a shell keeps
    SIGINT from what it runs in the background."""
    said = tmp_path / "said"
    stand_ins = {
        "scontrol": f'echo "$@" >> {said}; echo localhost',
        "scancel": f'echo "$@" >> {said}; kill "$(cat {tmp_path}/pid)"',
        "srun": f"echo $$ > {tmp_path}/pid; trap 'echo saved >> {said}; exit 130' TERM; kill -USR1 $PPID\n"
        "for _ in $(seq 100); do sleep 0.1; done",
    }
    for name, text in stand_ins.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "one")
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    run = run_script(script(capsys, plans["dgx-h100:2"], "slurm"))
    assert run.returncode == 0, run.stderr
    assert "queued again" in run.stdout
    assert said.read_text().splitlines() == ["show hostnames one", "--signal=INT 77", "saved", "requeue 77"]


def test_stages_smaller_than_a_host_of_ones_own_cluster_lie_on_its_hosts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whose file may be gone by then."""
    cluster, plan = tmp_path / "mine.toml", tmp_path / "plan.json"
    cluster.write_text(
        'name = "mine"\nbackend = "nccl"\n[device.x900]\nmemory = "48GB"\nmemory_bandwidth = "1.1TB/s"\n'
        'peaks = { bfloat16 = "330T" }\n[level.pcie]\nbandwidth = "32GB/s"\n[level.ethernet]\nbandwidth = "25Gbit/s"\n'
        '[[host]]\ncount = 2\ndevice = "x900"\ndevices = 2\n'
    )
    model = "gpt?layers=4&hidden=16&heads=2&ffn=32&vocab=64&seq=8"
    place = ["--cluster", str(cluster), "--global-batch", "8", "--pin", "pp=4", "--quiet", "-o", str(plan)]
    assert main(["plan", model, *place]) == 0
    assert "meshwright launch" in capsys.readouterr().out
    cluster.unlink()
    written = script(capsys, plan, "torchrun")
    assert "--nnodes=2 --nproc-per-node=2" in written


def test_saving_now_and_then_needs_no_folder_where_the_script_names_one(
    plans: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(["launch", str(plans["dgx-h100:2"]), "--print", "slurm", "--train=--every 20"]) == 0
    found = capsys.readouterr().out
    assert "--every 20 --checkpoint-dir run --resume auto" in found
    assert "--every 100" not in found
