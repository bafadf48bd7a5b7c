"""Ranks are started together and ended together, whatever happens to one of them or to the launcher."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from meshwright.errors import RunError
from meshwright.runtime.job.launch import launch

RANK = """
import os, sys, time
from pathlib import Path
from meshwright.runtime.job.launch import end_with_parent
end_with_parent()
Path(sys.argv[1], os.environ["RANK"]).write_text(str(os.getpid()))
while not Path(sys.argv[1], "go").exists():
    time.sleep(0.05)
if os.environ["RANK"] == "1":
    sys.exit(3)
time.sleep(60)
"""


@pytest.fixture
def rank_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "a_rank.py").write_text(RANK)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    return tmp_path


def wait_for(folder: Path, ranks: int) -> list[int]:
    deadline = time.monotonic() + 60
    files = [folder / str(rank) for rank in range(ranks)]
    while not all(file.exists() and file.read_text() for file in files):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return [int(file.read_text()) for file in files]


def let_go(folder: Path) -> list[int]:
    ranks = wait_for(folder, 2)
    (folder / "go").touch()
    return ranks


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_failing_rank_is_named_and_ends_the_rest(rank_module: Path) -> None:
    with ThreadPoolExecutor(1) as watcher:  # both ranks are seen alive before one of them fails
        ranks = watcher.submit(let_go, rank_module)
        with pytest.raises(RunError, match="rank 1 of 2 ended with code 3"):
            launch("a_rank", [str(rank_module)], 2)
    assert not any(alive(process) for process in ranks.result())


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_no_rank_outlives_its_launcher(rank_module: Path, how: signal.Signals) -> None:
    script = f"from meshwright.runtime.job.launch import launch; launch('a_rank', [{str(rank_module)!r}], 2)"
    launcher = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.DEVNULL)
    ranks = wait_for(rank_module, 2)
    launcher.send_signal(how)
    launcher.wait(20)
    deadline = time.monotonic() + 10
    while any(alive(process) for process in ranks):
        assert time.monotonic() < deadline, "a rank is still running 10 s after its launcher"
        time.sleep(0.1)
