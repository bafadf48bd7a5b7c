"""What `bench/chaos.py` does to jobs, and how a job may end by it."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Literal

from chaos_job import EARLY, MOMENTS, Job

PAUSE_S = 3.0
QUOTA_BYTES = 12_000
LATER = tuple(moment for moment in MOMENTS if moment not in EARLY)
Act = Callable[[Job, Random], "int | None"]


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that happens to a job. act: does it, and gives the rank or host that it happened to.

    ends: `late` within the timeout, by message; `soon` within the grace alone; `survives`: the job goes on to its end.
    names: whether the message has to name the rank. apart: a host that cannot end before it goes on. links: it is done
    to a link between hosts, which have to be network namespaces.
    """

    act: Act
    ends: Literal["late", "soon", "survives"]
    hosts: tuple[int, ...] = (1, 2, 3)
    moments: tuple[str, ...] = MOMENTS
    names: bool = False
    apart: bool = False
    links: bool = False
    words: tuple[str, ...] = ()


def _rank(job: Job, random: Random) -> tuple[int, int]:
    """A rank, and its process."""
    ranks = job.ranks()
    number = random.randrange(len(ranks))
    return number, ranks[number]


def kill_rank(job: Job, random: Random) -> int:
    number, process = _rank(job, random)
    os.kill(process, signal.SIGKILL)
    return number


def stop_rank(job: Job, random: Random) -> int:
    number, process = _rank(job, random)
    os.kill(process, signal.SIGSTOP)
    return number


def stop_rank_0(job: Job, random: Random) -> int:
    os.kill(job.ranks()[0], signal.SIGSTOP)
    return 0


def pause_rank(job: Job, random: Random) -> int:
    number, process = _rank(job, random)
    _pause([process])
    return number


def pause_all(job: Job, random: Random) -> None:
    """As a laptop that is closed, or a virtual machine that is moved."""
    _pause([launcher.pid for launcher in job.launchers] + job.ranks())


def _pause(processes: list[int]) -> None:
    for number in (signal.SIGSTOP, signal.SIGCONT):
        for process in processes:
            with suppress(ProcessLookupError):
                os.kill(process, number)
        if number == signal.SIGSTOP:
            time.sleep(PAUSE_S)


def kill_launcher(job: Job, random: Random) -> int:
    number = random.randrange(len(job.launchers))
    job.launchers[number].kill()
    return number


def ask_launchers(job: Job, random: Random) -> None:
    """One of them is asked on one host, all of them on several, as a batch system does."""
    number = random.choice((signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
    for launcher in job.launchers:
        launcher.send_signal(number)


def ask_twice(job: Job, random: Random) -> None:
    job.launchers[0].send_signal(signal.SIGINT)
    time.sleep(0.2)
    job.launchers[0].send_signal(signal.SIGINT)


def _host(job: Job, random: Random, number: int) -> int:
    """Send a signal to a launcher and its ranks."""
    host = random.randrange(len(job.launchers))
    for process in (job.launchers[host].pid, *job.ranks(host)):
        with suppress(ProcessLookupError):
            os.kill(process, number)
    return host


def kill_host(job: Job, random: Random) -> int:
    return _host(job, random, signal.SIGKILL)


def stop_host(job: Job, random: Random) -> int:
    return _host(job, random, signal.SIGSTOP)


def cut_link(job: Job, random: Random) -> int:
    host = random.randrange(len(job.launchers))
    _link(job, host, "down")
    return host


def cut_and_restore(job: Job, random: Random) -> int:
    host = cut_link(job, random)
    time.sleep(PAUSE_S)
    _link(job, host, "up")
    return host


def slow_link(job: Job, random: Random) -> int:
    """To a crawl, for a while."""
    host = random.randrange(len(job.launchers))
    for rate in ("20kbit", "200mbit"):
        _tc(job, host, rate)
        if rate == "20kbit":
            time.sleep(PAUSE_S)
    return host


def _link(job: Job, host: int, state: str) -> None:
    assert job.network is not None
    subprocess.run(["ip", "-n", job.network.switch, "link", "set", f"p{host}", state], check=True, timeout=20)


def _tc(job: Job, host: int, rate: str) -> None:
    assert job.network is not None
    words = f"ip netns exec {job.network.switch} tc qdisc change dev p{host} root tbf rate {rate} burst 50000b"
    subprocess.run([*words.split(), "latency", "200ms"], check=True, timeout=20)


def fill_disk(job: Job, random: Random) -> None:
    """The folder of checkpoints is a small disk of its own (`chaos.small_disk`)."""
    with suppress(OSError), open(filler(job.folder), "wb") as file:
        while True:
            file.write(bytes(1 << 16))
            file.flush()


def reach_quota(job: Job, random: Random) -> None:
    """No rank may write files that are larger than what a log needs."""
    for process in job.ranks():
        resource.prlimit(process, resource.RLIMIT_FSIZE, (QUOTA_BYTES, QUOTA_BYTES))


def filler(folder: Path) -> Path:
    return folder / "filler"


FAULTS: dict[str, Fault] = {
    "kill a rank": Fault(kill_rank, "late"),
    "kill a rank, restarts": Fault(kill_rank, "survives", (1,), LATER, words=("--max-restarts", "1")),
    "stop a rank": Fault(stop_rank, "late", names=True),
    "stop rank 0": Fault(stop_rank_0, "late", names=True),
    "pause a rank": Fault(pause_rank, "survives"),
    "pause everything": Fault(pause_all, "survives"),
    "kill a launcher": Fault(kill_launcher, "late"),
    "ask the launchers": Fault(ask_launchers, "soon"),
    "ask it twice": Fault(ask_twice, "soon", (1,)),
    "kill a host": Fault(kill_host, "late", (2, 3)),
    "stop a host": Fault(stop_host, "late", (2, 3), LATER, apart=True),
    "cut the link": Fault(cut_link, "late", (2, 3), LATER, links=True),
    "cut and restore the link": Fault(cut_and_restore, "survives", (2, 3), LATER, links=True),
    "slow the link": Fault(slow_link, "survives", (2, 3), LATER, links=True),
    "fill the disk": Fault(fill_disk, "late", (1,), LATER),
    "reach a quota": Fault(reach_quota, "late", (1,), LATER),
}
