"""Faults on real training jobs, seeded: what is lost, what hangs, what is left behind, what is computed wrongly.

    python bench/chaos.py --runs 200          # at least 200 for a figure to be quoted
    python bench/chaos.py --first 17 --runs 1 # one of them again

A run starts `meshwright train` under a ZeRO-3, tensor or pipeline plan on 2 to 6 ranks, does something to it at some
moment, waits for its end, and starts the same command again with `--resume auto`. It counts as a fault of ours where a
process outlives `--timeout` by 10 s (hang), a rank its launcher by 10 s (orphan), the second begins before the last
complete checkpoint (lost), its losses are not those of a run that nothing was done to, bit for bit (wrong), or somebody
prints a traceback. Needs no root. Writes JSON to out/chaos.json.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random

MODEL = "gpt?layers=2&hidden=24&heads=6&ffn=48&vocab=128&seq=16"
BATCH, STEPS, TIMEOUT_S, GRACE_S, STARTING_S = 12, 10, 15, 10.0, 600.0
PLANS = {"zero": ("zero=3",), "tensor": ("mesh={n}", "tp={n}"), "pipeline": ("pp={n}",)}
RANKS = {"zero": (2, 3, 4, 6), "tensor": (2, 3, 6), "pipeline": (2, 4)}
MOMENTS = ("ranks start", "torch is imported", "first step", "a step", "a save", "before the summary")


@dataclass(slots=True)
class Run:
    """What was done, and what became of it. faults: ours."""

    number: int
    plan: str
    ranks: int
    fault: str
    moment: str
    end_s: float = 0.0
    again_s: float = 0.0
    faults: list[str] = field(default_factory=list)


def kill_rank(job: Job, random: Random) -> None:
    os.kill(random.choice(job.ranks()), signal.SIGKILL)


def stop_rank(job: Job, random: Random) -> None:
    os.kill(random.choice(job.ranks()), signal.SIGSTOP)


def stop_rank_0(job: Job, random: Random) -> None:
    os.kill(job.ranks()[0], signal.SIGSTOP)


def pause_rank(job: Job, random: Random) -> None:
    rank = random.choice(job.ranks())
    os.kill(rank, signal.SIGSTOP)
    time.sleep(3)
    with suppress(ProcessLookupError):
        os.kill(rank, signal.SIGCONT)


def kill_launcher(job: Job, random: Random) -> None:
    job.process.kill()


def ask_launcher(job: Job, random: Random) -> None:
    job.process.send_signal(random.choice((signal.SIGINT, signal.SIGTERM, signal.SIGHUP)))


def ask_twice(job: Job, random: Random) -> None:
    job.process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    with suppress(ProcessLookupError):
        job.process.send_signal(signal.SIGINT)


FAULTS: dict[str, Callable[[Job, Random], None]] = {
    "kill a rank": kill_rank,
    "stop a rank": stop_rank,
    "stop rank 0": stop_rank_0,
    "pause a rank": pause_rank,
    "kill the launcher": kill_launcher,
    "ask the launcher": ask_launcher,
    "ask it twice": ask_twice,
}
DAMAGES = ("nothing", "nothing", "nothing", "a byte", "a file", "the summary")
"""What happens to the newest checkpoint before the job is started again."""


class Job:
    """A training job, and the folder it saves to."""

    def __init__(self, plan: Path, ranks: int, folder: Path) -> None:
        self.count, self.folder = ranks, folder
        words = [MODEL, "--plan", str(plan), "--steps", str(STEPS), "--lr", "1e-2", "--timeout", str(TIMEOUT_S)]
        words += ["--checkpoint-dir", str(folder), "--every", "1", "--keep", "4", "--resume", "auto"]
        self.result = folder.with_suffix(".json")
        command = [sys.executable, "-m", "meshwright", "train", *words, "--json", str(self.result)]
        self.log = folder.with_suffix(".log").open("w+")
        self.process = subprocess.Popen(command, stdout=self.log, stderr=subprocess.STDOUT)
        self.seen: set[int] = set()

    def ranks(self) -> list[int]:
        """In their order; those that have been seen are remembered."""
        found = {}
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if entry.name.isdigit() and f"\nPPid:\t{self.process.pid}\n" in (entry / "status").read_text():
                    environment = (entry / "environ").read_bytes().split(b"\0")
                    found.update({int(v[5:]): int(entry.name) for v in environment if v.startswith(b"RANK=")})
        self.seen |= set(found.values())
        return [found[rank] for rank in sorted(found)]

    def wait_for(self, moment: str, random: Random) -> bool:
        """Whether the job was there at that moment; else it had ended."""
        wanted = {
            "ranks start": lambda: True,
            "torch is imported": lambda: all(map(_has_torch, self.ranks())),
            "first step": lambda: "step " in self.text(),
            "a step": lambda: bool(list(self.folder.glob(f"step-*{random_step}"))),
            "a save": lambda: bool(list(self.folder.glob(".saving-*"))),
            "before the summary": lambda: bool(list(self.folder.glob(".saving-*/.metadata"))),
        }[moment]
        random_step = random.randrange(1, STEPS - 2)
        deadline = time.monotonic() + STARTING_S
        while self.process.poll() is None and time.monotonic() < deadline:
            if len(self.ranks()) == self.count and wanted():
                time.sleep(random.random() * 0.3 if moment != "before the summary" else 0.0)
                return self.process.poll() is None
            time.sleep(0.005)
        return False

    def text(self) -> str:
        return Path(self.log.name).read_text()

    def end(self, within_s: float) -> str:
        """What went wrong with its end."""
        try:
            self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            return "hang"
        deadline = time.monotonic() + GRACE_S
        while any(map(_alive, self.seen)):
            if time.monotonic() > deadline:
                return "orphan"
            time.sleep(0.05)
        return ""

    def clear(self) -> None:
        self.ranks()
        self.process.kill()
        self.process.wait()
        for rank in filter(_alive, self.seen):
            with suppress(ProcessLookupError):
                os.kill(rank, signal.SIGKILL)
        self.log.close()


def _has_torch(rank: int) -> bool:
    with suppress(OSError):
        return "libtorch_cpu" in Path(f"/proc/{rank}/maps").read_text()
    return False


def _alive(process: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@contextmanager
def job(plan: Path, ranks: int, folder: Path) -> Iterator[Job]:
    started = Job(plan, ranks, folder)
    try:
        yield started
    finally:
        started.clear()


class Bench:
    """Plans and what they compute undisturbed, made when they are first asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._expected: dict[tuple[str, int], list[float]] = {}

    def plan(self, kind: str, ranks: int) -> Path:
        path = self.folder / f"{kind}-{ranks}.json"
        if not path.exists():
            pins = [word for pin in PLANS[kind] for word in ("--pin", pin.format(n=ranks))]
            words = [MODEL, "--cluster", f"local:{ranks}", "--global-batch", str(BATCH), "-o", str(path), *pins]
            subprocess.run([sys.executable, "-m", "meshwright", "plan", *words], check=True, capture_output=True)
        return path

    def expected(self, kind: str, ranks: int) -> list[float]:
        if (kind, ranks) not in self._expected:
            with job(self.plan(kind, ranks), ranks, self.folder / f"whole-{kind}-{ranks}") as whole:
                assert whole.end(STARTING_S) == "", whole.text()
                assert whole.process.returncode == 0, whole.text()
                self._expected[kind, ranks] = json.loads(whole.result.read_text())["losses"]
        return self._expected[kind, ranks]

    def run(self, number: int, seed: int) -> Run:
        random = Random(f"{seed} {number}")
        kind = random.choice(list(PLANS))
        ranks = random.choice(RANKS[kind])
        fault, moment, damage = random.choice(list(FAULTS)), random.choice(MOMENTS), random.choice(DAMAGES)
        found = Run(number, kind, ranks, fault if damage == "nothing" else f"{fault}, then damage {damage}", moment)
        expected, plan = self.expected(kind, ranks), self.plan(kind, ranks)
        folder = self.folder / f"run-{number}"
        with job(plan, ranks, folder) as first:
            reached = first.wait_for(moment, random)
            began = time.monotonic()
            if reached:
                with suppress(IndexError, ProcessLookupError):
                    FAULTS[fault](first, random)
            # A job that was asked, or only paused, may go on to its end.
            limit_s = STARTING_S if fault == "pause a rank" or not reached else TIMEOUT_S + GRACE_S
            found.faults += filter(None, [first.end(limit_s)])
            found.end_s = time.monotonic() - began
            _check_text(first.text(), found)
        steps = _complete(folder)
        if damage != "nothing" and len(steps) > 1:
            _damage(folder / f"step-{steps[-1]:06d}", damage, random)
            steps.pop()
        self._again(plan, folder, steps, expected, found)
        return found

    def _again(self, plan: Path, folder: Path, steps: list[int], expected: list[float], found: Run) -> None:
        began = time.monotonic()
        with job(plan, found.ranks, folder) as second:
            found.faults += filter(None, [second.end(STARTING_S)])
            text = second.text()
            _check_text(text, found)
            if second.process.returncode != 0:
                found.faults.append(f"not resumed: {text[-300:]}")
                return
            from_step = re.search(r"going on from \S+, step (\d+)", text)
            if (int(from_step[1]) if from_step else 0) < (steps[-1] if steps else 0):
                found.faults.append(f"lost: from {from_step and from_step[1]}, complete were {steps}")
            losses = json.loads(second.result.read_text())["losses"]
            if losses != expected:
                found.faults.append(f"wrong: {losses} instead of {expected}")
        found.again_s = time.monotonic() - began


def _complete(folder: Path) -> list[int]:
    return sorted(int(path.parent.name.removeprefix("step-")) for path in folder.glob("step-*/meshwright.json"))


def _check_text(text: str, found: Run) -> None:
    if "Traceback" in text:
        found.faults.append(f"traceback: {text[text.index('Traceback') :][:400]}")


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
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no other run after so long")
    args = parser.parse_args(arguments)
    done: list[Run] = []
    began = time.monotonic()
    Path("out").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        for number in range(args.first, args.first + args.runs):
            if time.monotonic() - began > args.seconds:
                break
            done.append(bench.run(number, args.seed))
            one = done[-1]
            print(f"{number}: {one.plan} on {one.ranks}, {one.fault} at {one.moment}: ended after {one.end_s:.1f} s, "
                  f"again in {one.again_s:.1f} s; {', '.join(one.faults) or 'fine'}", flush=True)  # fmt: skip
            Path("out/chaos.json").write_text(json.dumps([asdict(run) for run in done], indent=1) + "\n")
    kinds = Counter(fault.partition(":")[0] for run in done for fault in run.faults)
    print(f"{len(done)} runs, {kinds.total()} faults {dict(kinds)}")
    return 1 if kinds else 0


if __name__ == "__main__":
    sys.exit(main())
