"""Hosts that come and go: a lost one is gone on without, one that joins again is trained on."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.full
MODEL = "gpt?layers=1&hidden=16&heads=2&ffn=32&vocab=128&seq=16"
PATIENCE_S = 200


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


class Hosts:
    """Agents of one rank each, on the loopback interface; the first one keeps the store that they meet at."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, _free_port()
        self.agents: list[subprocess.Popen[bytes]] = []
        self.log = folder.with_suffix(".log")

    def start(self, first: bool) -> subprocess.Popen[bytes]:
        meeting = f"is_host={int(first)},last_call_timeout=2,keep_alive_interval=1,keep_alive_max_attempt=3"
        words = ["--nnodes=1:2", "--nproc-per-node=1", "--max-restarts=9", "--rdzv-backend=c10d", "--rdzv-id=hosts"]
        words += [f"--rdzv-endpoint=127.0.0.1:{self.port}", f"--rdzv-conf={meeting}", "--local-addr=127.0.0.1"]
        words += ["--monitor-interval=0.2", "-m", "meshwright", "train", MODEL, "--global-batch", "6", "--lr", "1e-2"]
        words += ["--checkpoint-dir", str(self.folder), "--every", "5", "--resume", "auto", "--steps", "1000000"]
        environment = os.environ | {"MESHWRIGHT_KEY": "hosts", "GLOO_SOCKET_IFNAME": "lo"}
        command = [sys.executable, "-m", "meshwright.runtime.job.elastic", *words, "--timeout", "20"]
        with self.log.open("ab") as log:
            agent = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
        self.agents.append(agent)
        return agent

    def until(self, world: int, after: int) -> int:
        """The step of the first complete checkpoint by so many ranks after a step."""

        def found() -> int:
            for path in sorted(self.folder.glob("step-*/meshwright.json")):
                step = int(path.parent.name.removeprefix("step-"))
                if step > after and json.loads(path.read_text())["world_size"] == world:
                    return step
            return 0

        return self.wait(found)

    def wait(self, wanted: Callable[[], int]) -> int:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            try:
                if found := wanted():
                    return found
            except FileNotFoundError:
                pass  # an old checkpoint that was removed
            time.sleep(0.1)
        raise AssertionError(self.log.read_text()[-3000:])

    def end(self) -> None:
        for agent in self.agents:
            agent.kill()
            agent.wait()


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    started = Hosts(tmp_path / "run")
    try:
        yield started
    finally:
        started.end()


def test_a_host_is_lost_and_joins_again(hosts: Hosts) -> None:
    first, second = hosts.start(True), hosts.start(False)
    together = hosts.until(2, 0)
    second.kill()
    alone = hosts.until(1, together)
    hosts.start(False)
    again = hosts.until(2, alone)
    assert together < alone < again
    first.send_signal(signal.SIGTERM)
    first.wait(PATIENCE_S)
    text = hosts.log.read_text()
    assert "Traceback" not in text
    from_steps = [int(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith("going on from")]
    assert from_steps == sorted(from_steps)
    assert from_steps[0] >= together
