"""`meshwright train`: saves, goes on, leaves cleanly, and says what went wrong, once."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from meshwright.cli import main
from meshwright.runtime.job.options import RANK_BYTES
from meshwright.runtime.state.folder import latest

MODEL = "gpt?layers=1&hidden=16&heads=2&ffn=32&vocab=128&seq=16"
PATIENCE_S = 900


_STARTED: list[subprocess.Popen[str]] = []


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """A test that fails leaves no job behind: ranks end with their launcher."""
    yield
    while _STARTED:
        with _STARTED.pop() as run:
            run.kill()


def test_more_processes_than_memory_holds_are_refused_with_the_bound(capsys: pytest.CaptureFixture[str]) -> None:
    most = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // RANK_BYTES
    assert main(["train", MODEL, "--nproc", "1000000"]) == 2
    told = capsys.readouterr().err
    assert "1,000,000 processes on one machine" in told
    assert f"at most {most:,}: each takes 256 MiB before it holds a model" in told


def start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "meshwright", "train", MODEL, "--global-batch", "6", *arguments]
    _STARTED.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    return _STARTED[-1]


def wait_for(run: subprocess.Popen[str], folder: Path, pattern: str) -> None:
    """Until something of this name is in the folder."""
    deadline = time.monotonic() + PATIENCE_S
    while not list(folder.glob(pattern)):
        assert run.poll() is None, run.stderr.read() if run.stderr else ""
        assert time.monotonic() < deadline
        time.sleep(0.01)


def ranks_of(launcher: int) -> list[int]:
    """The processes that a launcher started, in the order of their ranks."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and f"\nPPid:\t{launcher}\n" in (entry / "status").read_text():
                environment = (entry / "environ").read_bytes().split(b"\0")
                found.update({int(v[5:]): int(entry.name) for v in environment if v.startswith(b"RANK=")})
        except OSError:
            continue
    return [found[rank] for rank in sorted(found)]


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.full
def test_it_goes_on_from_a_checkpoint_on_fewer_ranks(tmp_path: Path) -> None:
    shared = ["--global-batch", "6", "--lr", "1e-2"]
    whole, first, second = (tmp_path / f"{name}.json" for name in ("whole", "first", "second"))
    folder = str(tmp_path / "saved")
    assert main(["train", MODEL, *shared, "--nproc", "1", "--steps", "8", "--json", str(whole)]) == 0
    saving = ["--checkpoint-dir", folder, "--every", "2"]
    assert main(["train", MODEL, *shared, "--nproc", "3", "--steps", "5", *saving, "--json", str(first)]) == 0
    again = ["--checkpoint-dir", folder, "--resume"]
    assert main(["train", MODEL, "--lr", "1e-2", "--nproc", "2", "--steps", "8", *again, "--json", str(second)]) == 0
    found = json.loads(second.read_text())
    assert set(found) == {"losses", "tokens_per_second", "peak_bytes", "step_s", "spikes", "plan"}
    assert found["losses"] == pytest.approx(json.loads(whole.read_text())["losses"], rel=1e-4)
    assert found["plan"]["batch"] == 6, "the batch is that of the saved run"
    assert found["losses"][-1] < found["losses"][0]
    assert [path.name for path in sorted(Path(folder).glob("step-*"))] == ["step-000004", "step-000005", "step-000008"]


@pytest.mark.parametrize("ignored", [False, pytest.param(True, marks=pytest.mark.full)])
def test_it_learns_and_ctrl_c_saves_and_leaves(tmp_path: Path, ignored: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it writes for itself meanwhile nobody else can read, whatever the umask, and none of it is left."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))  # torch's own, kept from run to run
    mask = os.umask(0)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN if ignored else signal.default_int_handler)
    saving = ["--checkpoint-dir", str(tmp_path), "--every", "6", "--json", str(tmp_path / "run.json")]
    run = start("--nproc", "2", "--steps", "100000", "--lr", "1e-2", *saving)
    signal.signal(signal.SIGINT, before)
    os.umask(mask)
    wait_for(run, tmp_path, "step-000012")
    modes = [path.stat().st_mode & 0o777 for path in temporary.iterdir()]
    assert modes
    assert not any(mode & 0o077 for mode in modes)
    ranks = ranks_of(run.pid)
    run.send_signal(signal.SIGINT)
    out, error = run.communicate(timeout=PATIENCE_S)
    assert run.returncode == 130, error
    assert "go on with --resume" in out
    assert f"saved {tmp_path / 'step-000006'}\n" in out
    assert re.search(r"data: [\d,]+ samples of 16 characters of the text that comes with meshwright; another", out)
    assert f"weights: as {MODEL} initialises them, seed 0, each tensor drawn alone (docs/running.md)\n" in out
    assert "Traceback" not in error
    losses = json.loads((tmp_path / "run.json").read_text())["losses"]
    assert losses[11] < losses[0] - 0.5
    assert len(ranks) == 2
    assert not any(map(alive, ranks))
    assert not list(temporary.iterdir())


@pytest.mark.full
def test_a_rank_killed_in_a_save_is_named_and_nothing_complete_is_lost(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = start("--nproc", "2", "--steps", "100000", "--checkpoint-dir", str(tmp_path), "--every", "1")
    wait_for(run, tmp_path, "step-000002")
    wait_for(run, tmp_path, ".saving-*")
    ranks = ranks_of(run.pid)
    os.kill(ranks[1], signal.SIGKILL)
    _, error = run.communicate(timeout=PATIENCE_S)
    assert run.returncode == 2
    assert "rank 1 of 2 was killed by signal 9" in error
    assert error.count("meshwright:") == 1, error
    assert not any(map(alive, ranks))
    newest = latest(tmp_path)
    assert newest is not None
    assert f"go on from {newest}, the newest complete checkpoint, with --resume" in error
    steps = int(newest.name.removeprefix("step-"))
    damaged = newest / "__1_0.distcp"
    damaged.write_bytes(damaged.read_bytes()[:-100] + b"\1" * 100)
    again = ["--nproc", "1", "--steps", str(steps + 1), "--checkpoint-dir", str(tmp_path), "--resume"]
    assert main(["train", MODEL, *again]) == 0
    out, error = capfd.readouterr()
    assert f"passed over: {damaged} is damaged" in error
    assert f"going on from {tmp_path / f'step-{steps - 1:06d}'}" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--resume", "--checkpoint-dir", "{}/absent"), "absent is not there"),
        pytest.param(("--lr", "1e30", "--steps", "20"), "the loss is nan at step", marks=pytest.mark.full),
        (("--every", "3"), "--every without --checkpoint-dir"),
        (("--checkpoint-dir", "/proc/nowhere"), "cannot be written"),
        (("--data", "{}/absent"), "is no file"),
    ],
)
def test_one_message_each(
    arguments: tuple[str, ...], message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    given = [word.format(tmp_path) for word in arguments]
    assert main(["train", MODEL, "--global-batch", "6", "--nproc", "2", *given]) == 2
    assert not (tmp_path / "absent").exists()
    error = capfd.readouterr().err
    assert error.count(message) == 1
    assert error.count("meshwright:") == 1, error
    assert "Traceback" not in error


@pytest.mark.full
@pytest.mark.parametrize("stopped", [0, 1])
def test_late_ranks_are_named(stopped: int) -> None:
    run = start("--nproc", "2", "--steps", "1000000", "--timeout", "15")
    assert run.stdout is not None
    assert any(line.startswith("step") for line in run.stdout), "it trains"
    ranks = ranks_of(run.pid)
    os.kill(ranks[stopped], signal.SIGSTOP)
    _, error = run.communicate(timeout=15 + 10)
    assert run.returncode == 2
    assert not any(map(alive, ranks))
    named = (
        f"rank {stopped} on {socket.gethostname()} (at `",
        f"rank {stopped}: last heard of on {socket.gethostname()}",
    )
    assert any(word in error for word in named), error
    assert error.count("meshwright:") == 1, error
