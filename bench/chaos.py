"""Faults on real training jobs, seeded: what is lost, what hangs, what is left behind, what is computed wrongly.

    python bench/chaos.py --runs 200          # at least 200 for a figure to be quoted
    python bench/chaos.py --first 17 --runs 1 # one of them again
    python bench/chaos.py --jobs 12           # several at a time
    python bench/chaos.py --done a.json b.json # what earlier runs found: counted, and not done again

A run starts `meshwright train` under a ZeRO-3, tensor or pipeline plan on 2 to 6 ranks, does something to it at some
moment, waits for its end, and starts the same command again with `--resume auto`. Hosts are network namespaces, each
with a torchrun of its own; where these cannot be made (`--no-namespaces`), they share the loopback interface, which the
summary counts, and runs that cut or slow a link are not done but listed, for `--only` elsewhere; as those that fill a
disk where none can be mounted. A number is the same run everywhere. It counts as a fault of ours where a process
outlives `--timeout` by 10 s (hang), a rank its launcher by 10 s (orphan), a job ends that should have gone on (ended),
the message does not name the rank that stood still (unnamed), the second begins before the last complete checkpoint
(lost), its losses are not those of a run that nothing was done to, bit for bit (wrong), a job with `--max-restarts`
needs 15 s more than a plain start until it trains on (late), or somebody prints a traceback. Writes out/chaos.json
after each run.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parent))

from chaos_faults import FAULTS, Fault, filler
from chaos_job import BATCH, EARLY, GRACE_S, LOOPBACK, MODEL, PATIENCE_S, TIMEOUT_S, Job, Setting, job
from chaos_warm import warm
from network import Host, ShapedNetwork, shaped_network, why_not

PLANS = {"zero": ("zero=3",), "tensor": ("mesh={n}", "tp={n}"), "pipeline": ("pp={n}",)}
RANKS = {"zero": (2, 2, 3, 4, 6), "tensor": (2, 2, 3, 6), "pipeline": (2, 2, 4)}
DAMAGES = ("nothing", "nothing", "nothing", "a byte", "a file", "the summary")
"""What happens to the newest checkpoint before the job is started again."""
FILL = "fill the disk"
BACK_S = 15.0
"""How much longer than a plain start a job may need to train on after a rank was killed."""
KINDS = ("hang", "orphan", "ended", "unnamed", "lost", "wrong", "not resumed", "late", "traceback")


@dataclass(slots=True)
class Run:
    """What was done, and what became of it. faults: ours. reached: the job was there at that moment. back_s: from a
    killed rank until the job trains on; plain_s: from a start of the same job until it trains."""

    number: int
    setting: str
    fault: str
    moment: str
    damage: str
    reached: bool = False
    end_s: float = 0.0
    again_s: float = 0.0
    back_s: float | None = None
    plain_s: float | None = None
    faults: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        done = f"{self.fault} at {self.moment}" + (f", then damage {self.damage}" if self.damage != "nothing" else "")
        told = f"{self.number}: {self.setting}: {done}: {'' if self.reached else 'not reached, '}"
        return (
            f"{told}ended after {self.end_s:.1f} s, again in {self.again_s:.1f} s; {', '.join(self.faults) or 'fine'}"
        )


def drawn(number: int, seed: int, namespaces: bool) -> tuple[Random, Fault, Setting, Run]:
    """The run of this number; it does not depend on what can be done here, apart from how hosts are joined."""
    random = Random(f"{seed} {number}")
    name = random.choice(list(FAULTS))
    fault = FAULTS[name]
    kind = random.choice(list(PLANS))
    shapes = [(ranks, count) for ranks in RANKS[kind] for count in fault.hosts if ranks % count == 0]
    ranks, count = random.choice(shapes)
    moment = random.choice([m for m in fault.moments if count == 1 or m not in EARLY])
    setting = Setting(kind, ranks, count, moment not in EARLY, namespaces, fault.words)
    return random, fault, setting, Run(number, str(setting), name, moment, random.choice(DAMAGES))


class Bench:
    """Plans and what they compute undisturbed, made when they are first asked for."""

    def __init__(self, folder: Path, grace_s: float, namespaces: bool) -> None:
        self.folder, self.grace_s, self.namespaces = folder, grace_s, namespaces
        self.disks = _mounts(folder)
        self._expected: dict[tuple[str, int], tuple[list[float], float]] = {}

    def possible(self, number: int, seed: int) -> bool:
        """Whether this machine can do what the run asks for."""
        _, fault, _, run = drawn(number, seed, self.namespaces)
        return (self.namespaces or not fault.links) and (self.disks or run.fault != FILL)

    def plan(self, kind: str, ranks: int) -> Path:
        path = self.folder / f"{kind}-{ranks}.json"
        if not path.exists():
            pins = [word for pin in PLANS[kind] for word in ("--pin", pin.format(n=ranks))]
            words = [MODEL, "--cluster", f"local:{ranks}", "--global-batch", str(BATCH), "-o", str(path), *pins]
            subprocess.run([sys.executable, "-m", "meshwright", "plan", *words], check=True, capture_output=True)
        return path

    def expected(self, kind: str, ranks: int) -> tuple[list[float], float]:
        """Losses, and the seconds from a start until it trains."""
        folder = self.folder / f"whole-{kind}-{ranks}"
        if (kind, ranks) not in self._expected and not (kept := folder.with_suffix(".kept")).exists():
            with job(self.plan(kind, ranks), Setting(kind, ranks), folder) as whole:
                assert whole.end(PATIENCE_S) == "", whole.text()
                assert whole.codes() == [0], whole.text()
                assert whole.trains_s is not None
                losses = json.loads(whole.result.read_text())["losses"]
                kept.write_text(json.dumps([losses, whole.trains_s - whole.began_s]))
        if (kind, ranks) not in self._expected:
            self._expected[kind, ranks] = tuple(json.loads(folder.with_suffix(".kept").read_text()))
        return self._expected[kind, ranks]

    def run(self, number: int, seed: int) -> Run:
        random, fault, setting, found = drawn(number, seed, self.namespaces)
        with _alone(self.folder / f"{setting.kind}-{setting.ranks}.lock"):
            (expected, plain_s), plan = (
                self.expected(setting.kind, setting.ranks),
                self.plan(setting.kind, setting.ranks),
            )
        folder = self.folder / f"run-{number}"
        with _hosts(setting) as network, _small_disk(folder, found.fault == FILL):
            with job(plan, setting, folder, network) as first:
                self._disturb(first, fault, random, found, plain_s)
            steps = _complete(folder)
            if found.damage != "nothing" and len(steps) > 1:
                _damage(folder / f"step-{steps[-1]:06d}", found.damage, random)
                steps.pop()
            filler(folder).unlink(missing_ok=True)
            self._again(plan, setting, folder, steps, expected, found)
        if not found.faults:
            shutil.rmtree(folder, ignore_errors=True)
        return found

    def _disturb(self, first: Job, fault: Fault, random: Random, found: Run, plain_s: float) -> None:
        found.reached = first.reach(found.moment, random)
        began, hit = time.monotonic(), None
        if found.reached:
            with suppress(IndexError, ValueError, ProcessLookupError):
                hit = fault.act(first, random)
        limits_s = {"late": TIMEOUT_S + self.grace_s, "soon": self.grace_s, "survives": PATIENCE_S}
        limit_s = limits_s[fault.ends] if found.reached else PATIENCE_S
        apart = [hit] if fault.apart and hit is not None else []
        found.faults += filter(None, [first.end(limit_s, apart)])
        found.end_s = time.monotonic() - began
        if first.went_on and first.trains_s is not None:
            found.back_s, found.plain_s = first.trains_s - began, plain_s
            if found.back_s > plain_s + BACK_S:
                found.faults.append(f"late: trains on after {found.back_s:.1f} s, a plain start takes {plain_s:.1f} s")
        if apart:
            _go_on(first, apart[0])
            found.faults += filter(None, [first.end(limit_s)])
        text = first.text()
        _check_text(text, found)
        if fault.ends == "survives" and any(first.codes()):
            found.faults.append(f"ended: {text[-600:]}")
        named = hit is None or re.search(rf"rank {hit}\b[^\n]*{re.escape(first.host_of(hit))}", text)
        if fault.names and any(first.codes()) and not named:
            found.faults.append(f"unnamed: rank {hit} in {text[-600:]}")

    def _again(
        self, plan: Path, setting: Setting, folder: Path, steps: list[int], expected: list[float], found: Run
    ) -> None:
        began = time.monotonic()
        with job(plan, Setting(setting.kind, setting.ranks), folder) as second:
            found.faults += filter(None, [second.end(PATIENCE_S)])
            text = second.text()
            _check_text(text, found)
            if second.codes() != [0]:
                found.faults.append(f"not resumed: {text[-600:]}")
                return
            from_step = re.search(r"going on from \S+, step (\d+)", text)
            if (int(from_step[1]) if from_step else 0) < (steps[-1] if steps else 0):
                found.faults.append(f"lost: from {from_step and from_step[1]}, complete were {steps}")
            losses = json.loads(second.result.read_text())["losses"]
            if losses != expected:
                found.faults.append(f"wrong: {losses} instead of {expected}")
        found.again_s = time.monotonic() - began


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """One process of this bench at a time."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _mounts(folder: Path) -> bool:
    """Whether small disks can be mounted here."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        command = ["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", place]
        with suppress(OSError):
            if subprocess.run(command, check=False, capture_output=True).returncode == 0:
                subprocess.run(["umount", place], check=True)
                return True
    return False


@contextmanager
def _hosts(setting: Setting) -> Iterator[ShapedNetwork | None]:
    if setting.hosts == 1 or not setting.namespaces:
        yield None
        return
    with shaped_network([Host(f"host{n}", "200mbit") for n in range(setting.hosts)]) as network:
        yield network


@contextmanager
def _small_disk(folder: Path, wanted: bool) -> Iterator[None]:
    if not wanted:
        yield
        return
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=False)


def _go_on(stopped: Job, host: int) -> None:
    for process in (stopped.launchers[host].pid, *stopped.ranks(host)):
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGCONT)


def _complete(folder: Path) -> list[int]:
    return sorted(int(path.parent.name.removeprefix("step-")) for path in folder.glob("step-*/meshwright.json"))


def _check_text(text: str, found: Run) -> None:
    if "Traceback" in text:
        found.faults.append(f"traceback: {text[text.index('Traceback') :][:1500]}")


def _damage(checkpoint: Path, how: str, random: Random) -> None:
    files = sorted(path for path in checkpoint.iterdir() if path.suffix == ".distcp")
    victim = checkpoint / "meshwright.json" if how == "the summary" else random.choice(files)
    if how == "a file":
        victim.unlink()
        return
    content = bytearray(victim.read_bytes())
    content[random.randrange(len(content))] ^= 0x40
    victim.write_bytes(content)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--runs", type=int, default=200)
    add("--first", type=int, default=0)
    add("--only", type=lambda text: [int(word) for word in text.split(",")], help="these alone, with commas")
    add("--seed", type=int, default=0)
    add("--seconds", type=float, default=float("inf"), help="begin no other run after so long")
    add("--grace", type=float, default=GRACE_S, help="seconds that an end may take; more on a machine that is busy")
    add("--keep", help="a folder for plans and undisturbed runs, which others may use again")
    add("-o", "--out", default="out/chaos.json")
    add("--done", nargs="+", default=[], help="files of earlier runs: they are counted, and not done again")
    add("--jobs", type=int, default=1, help="runs at a time")
    add("--no-namespaces", action="store_true", help="several hosts share the loopback interface; no links are cut")
    args = parser.parse_args(arguments)
    done = [Run(**run) for path in args.done for run in json.loads(Path(path).read_text())]
    Path(args.out).parent.mkdir(parents=True, exist_ok=True)
    warm(MODEL)
    numbers = args.only or range(args.first, args.first + args.runs)
    numbers = [number for number in numbers if number not in {run.number for run in done}]
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(args.keep or folder)
        kept.mkdir(parents=True, exist_ok=True)
        why = "--no-namespaces" if args.no_namespaces else why_not()
        if why is not None:
            print(f"hosts share the loopback interface, and links are neither cut nor slowed: {why}", flush=True)
        bench = Bench(kept, args.grace, why is None)
        elsewhere = [number for number in numbers if not bench.possible(number, args.seed)]
        numbers = [number for number in numbers if number not in elsewhere]
        for found in _runs(bench, numbers, args.seed, time.monotonic() + args.seconds, args.jobs):
            done.append(found)
            print(found, flush=True)
            Path(args.out).write_text(json.dumps([asdict(run) for run in done], indent=1) + "\n")
    over = {run.number for run in done}
    for left, reason in ((elsewhere, "not possible here"), (numbers, "no time")):
        if left := [str(number) for number in left if number not in over]:
            print(f"{len(left)} runs not done ({reason}): --only {','.join(left)}")
    print(summary(done))
    return 1 if any(run.faults for run in done) else 0


def summary(done: Sequence[Run]) -> str:
    kinds = Counter(fault.partition(":")[0] for run in done for fault in run.faults)
    found = ", ".join(f"{kinds[kind]} {kind}" for kind in KINDS)
    more_s = [run.back_s - run.plain_s for run in done if run.back_s is not None and run.plain_s is not None]
    back = f"; back at most {max(more_s):.1f} s later than a plain start ({len(more_s)} restarts)" if more_s else ""
    shared = sum(LOOPBACK in run.setting for run in done)
    joined = f" ({shared} with hosts on one loopback interface)" if shared else ""
    return f"{len(done)} runs{joined}, {sum(run.reached for run in done)} disturbed: {found}{back}"


def _runs(bench: Bench, numbers: Sequence[int], seed: int, until_s: float, jobs: int) -> Iterator[Run]:
    """As they are over; none is begun too late."""
    run = partial(_one, bench, seed, until_s)
    if jobs == 1:
        yield from filter(None, map(run, numbers))
        return
    with get_context("fork").Pool(jobs) as pool:  # before this process has threads
        yield from filter(None, pool.imap_unordered(run, numbers))


def _one(bench: Bench, seed: int, until_s: float, number: int) -> Run | None:
    return bench.run(number, seed) if time.monotonic() < until_s else None


if __name__ == "__main__":
    sys.exit(main())
