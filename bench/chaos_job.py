"""A training job of `bench/chaos.py`: its launchers and ranks, the moments of its life, and its end."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import chaos_warm

sys.path.insert(0, str(Path(__file__).parent / "shaped"))

from network import ShapedNetwork

MODEL = "gpt?layers=2&hidden=24&heads=6&ffn=48&vocab=128&seq=16"
BATCH, STEPS, TIMEOUT_S, GRACE_S, PATIENCE_S = 12, 6, 15, 10.0, 600.0
EARLY = ("ranks start", "torch is imported")
MOMENTS = (*EARLY, "first step", "a step", "a save", "before the summary")
"""EARLY: those of processes that are started from files; other jobs are copies of a process that has torch."""

LOOPBACK = " on loopback"
_PORTS = 20_000


@dataclass(frozen=True, slots=True)
class Setting:
    """What is started: a kind of plan, how many ranks, on how many hosts; warm: as copies; namespaces: what hosts are,
    else they share the loopback interface; words: more options."""

    kind: str
    ranks: int
    hosts: int = 1
    warm: bool = True
    namespaces: bool = True
    words: tuple[str, ...] = ()

    def __str__(self) -> str:
        hosts = "1 host" if self.hosts == 1 else f"{self.hosts} hosts" + ("" if self.namespaces else LOOPBACK)
        return f"{self.kind} on {self.ranks} ranks, {hosts}"


class Job:
    """A job, and the folder it saves to."""

    def __init__(self, plan: Path, setting: Setting, folder: Path, network: ShapedNetwork | None = None) -> None:
        self.setting, self.folder, self.network = setting, folder, network
        self.result, self.log = folder.with_suffix(".json"), folder.with_suffix(".log")
        self.log.write_text("")
        words = [MODEL, "--plan", str(plan), "--steps", str(STEPS), "--lr", "1e-2", "--timeout", str(TIMEOUT_S)]
        words += ["--checkpoint-dir", str(folder), "--every", "1", "--keep", "4", "--resume", "auto"]
        words += ["--json", str(self.result), *setting.words]
        self.began_s = time.monotonic()
        self.seen: set[int] = set()
        self.trains_s: float | None = None  # since it has trained, or trained on
        self.went_on = False
        self.launchers: list[Any] = []
        if setting.hosts == 1:
            self.launchers.append(chaos_warm.train(words, self.log) if setting.warm else self._started(words))
        else:
            port = _free_port()
            self.launchers += [self._host(number, port, words) for number in range(setting.hosts)]

    def _started(self, words: Sequence[str]) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            command = [sys.executable, "-m", "meshwright", "train", *words]
            return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def _host(self, number: int, port: int, words: Sequence[str]) -> chaos_warm.Copy:
        """torchrun on one of the hosts, in its network namespace where there is a network."""
        head = self.network.address(0) if self.network else "127.0.0.1"
        where = ["--nnodes", str(self.setting.hosts), "--node-rank", str(number), "--master-addr", head]
        where += ["--master-port", str(port), "--nproc-per-node", str(self.setting.ranks // self.setting.hosts)]
        environment = {"MESHWRIGHT_KEY": "chaos", "GLOO_SOCKET_IFNAME": "eth0" if self.network else "lo"}
        host = None
        if self.network is not None:
            host = (self.network.hosts[number].name, self.network.namespace(self.network.hosts[number]))
        return chaos_warm.torchrun([*where, "-m", "meshwright", "train", *words], self.log, environment, host)

    def ranks(self, host: int | None = None) -> list[int]:
        """In their order, of one host or of all; those that have been seen are remembered."""
        parents = {launcher.pid: n for n, launcher in enumerate(self.launchers) if host in (None, n)}
        found = sorted((parents[p], child) for child, p in _parents() if p in parents)
        self.seen |= {child for _, child in found}
        return [child for _, child in found]

    def host_of(self, rank: int) -> str:
        if self.network is None:
            return socket.gethostname()
        return self.network.hosts[rank // (self.setting.ranks // self.setting.hosts)].name

    def reach(self, moment: str, random: Random) -> bool:
        """Whether the job came to that moment; else it has ended."""
        step = random.randrange(1, STEPS - 2)
        wanted = {
            "ranks start": lambda: True,
            "torch is imported": lambda: all(map(_has_torch, self.ranks())),
            "first step": lambda: "step " in self.text(),
            "a step": lambda: (self.folder / f"step-{step:06d}").exists(),
            "a save": lambda: bool(list(self.folder.glob(".saving-*"))),
            "before the summary": lambda: bool(list(self.folder.glob(".saving-*/.metadata"))),
        }[moment]
        deadline = time.monotonic() + PATIENCE_S
        while self.runs() and time.monotonic() < deadline:
            if len(self.ranks()) == self.setting.ranks and wanted():
                time.sleep(random.random() * 0.3 if moment != "before the summary" else 0.0)
                return self.runs()
            time.sleep(0.005)
        return False

    def runs(self) -> bool:
        return all(launcher.poll() is None for launcher in self.launchers)

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def codes(self) -> list[int | None]:
        return [launcher.poll() for launcher in self.launchers]

    def end(self, within_s: float, apart: Sequence[int] = ()) -> str:
        """What was wrong with its end. apart: hosts that are not waited for."""
        deadline = time.monotonic() + within_s
        waited = [launcher for number, launcher in enumerate(self.launchers) if number not in apart]
        while any(launcher.poll() is None for launcher in waited):
            self.ranks()
            self._look()
            if time.monotonic() > deadline:
                return "hang"
            time.sleep(0.05)
        left = set(self.ranks(apart[0])) if apart else set()
        deadline = time.monotonic() + GRACE_S
        while any(map(alive, self.seen - left)):
            if time.monotonic() > deadline:
                return "orphan"
            time.sleep(0.05)
        return ""

    def _look(self) -> None:
        """When it has trained: its first step, or the first after it went on with other ranks."""
        *before, text = self.text().split("going on with")
        if re.search(r"step +\d+/", text) and (self.trains_s is None or (before and not self.went_on)):
            self.trains_s, self.went_on = time.monotonic(), bool(before)

    def clear(self) -> None:
        self.ranks()
        for launcher in self.launchers:
            launcher.kill()
            launcher.wait()
        for rank in filter(alive, self.seen):
            with suppress(ProcessLookupError):
                os.kill(rank, signal.SIGKILL)


def _parents() -> Iterator[tuple[int, int]]:
    """Of every process that has not ended, itself and its parent."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError, IndexError):
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
                if state != "Z":
                    yield int(entry.name), int(parent)


def _has_torch(rank: int) -> bool:
    with suppress(OSError):
        return "libtorch_cpu" in Path(f"/proc/{rank}/maps").read_text()
    return False


def alive(process: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def _free_port() -> int:
    """Below those that the system hands out: jobs that run at the same time find others."""
    for port in range(_PORTS + os.getpid() * 16 % 9000, 32_000):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("no port is free")


@contextmanager
def job(plan: Path, setting: Setting, folder: Path, network: ShapedNetwork | None = None) -> Iterator[Job]:
    started = Job(plan, setting, folder, network)
    try:
        yield started
    finally:
        started.clear()
