"""Faults on real training jobs, seeded: what is lost, what hangs, what is left behind, what is computed wrongly.

    python bench/chaos.py --runs 200          # at least 200 for a figure to be quoted
    python bench/chaos.py --first 17 --runs 1 # one of them again

A run starts `meshwright train` under a ZeRO-3, tensor or pipeline plan on 2 to 6 ranks, does something to it at some
moment, waits for its end, and starts the same command again with `--resume auto`. Hosts are network namespaces, each
with a torchrun of its own. It counts as a fault of ours where a process outlives `--timeout` by 10 s (hang), a rank its
launcher by 10 s (orphan), a job ends that should have gone on (ended), the message does not name the rank that stood
still (unnamed), the second begins before the last complete checkpoint (lost), its losses are not those of a run that
nothing was done to, bit for bit (wrong), or somebody prints a traceback. Without root: one host only. Writes
out/chaos.json.
"""

from __future__ import annotations

import argparse
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
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parent))

from chaos_faults import FAULTS, Fault, filler
from chaos_job import BATCH, EARLY, GRACE_S, MODEL, PATIENCE_S, TIMEOUT_S, Job, Setting, job
from chaos_warm import warm
from network import Host, ShapedNetwork, shaped_network, why_not

PLANS = {"zero": ("zero=3",), "tensor": ("mesh={n}", "tp={n}"), "pipeline": ("pp={n}",)}
RANKS = {"zero": (2, 2, 3, 4, 6), "tensor": (2, 2, 3, 6), "pipeline": (2, 2, 4)}
DAMAGES = ("nothing", "nothing", "nothing", "a byte", "a file", "the summary")
"""What happens to the newest checkpoint before the job is started again."""


@dataclass(slots=True)
class Run:
    """What was done, and what became of it. faults: ours. reached: the job was there at that moment."""

    number: int
    setting: str
    fault: str
    moment: str
    damage: str
    reached: bool = False
    end_s: float = 0.0
    again_s: float = 0.0
    faults: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        done = f"{self.fault} at {self.moment}" + (f", then damage {self.damage}" if self.damage != "nothing" else "")
        told = f"{self.number}: {self.setting}: {done}: {'' if self.reached else 'not reached, '}"
        return (
            f"{told}ended after {self.end_s:.1f} s, again in {self.again_s:.1f} s; {', '.join(self.faults) or 'fine'}"
        )


def drawn(number: int, seed: int, hosts: bool) -> tuple[Random, Fault, Setting, Run]:
    """The run of this number."""
    random = Random(f"{seed} {number}")
    name = random.choice([name for name, fault in FAULTS.items() if hosts or 1 in fault.hosts])
    fault = FAULTS[name]
    if name == "fill the disk" and os.geteuid() != 0:
        name, fault = "kill a rank", FAULTS["kill a rank"]
    kind = random.choice(list(PLANS))
    shapes = [(ranks, count) for ranks in RANKS[kind] for count in fault.hosts if ranks % count == 0]
    ranks, count = random.choice([shape for shape in shapes if hosts or shape[1] == 1])
    moment = random.choice([m for m in fault.moments if count == 1 or m not in EARLY])
    setting = Setting(kind, ranks, count, moment not in EARLY, fault.words)
    return random, fault, setting, Run(number, str(setting), name, moment, random.choice(DAMAGES))


class Bench:
    """Plans and what they compute undisturbed, made when they are first asked for."""

    def __init__(self, folder: Path, grace_s: float, hosts: bool) -> None:
        self.folder, self.grace_s, self.hosts = folder, grace_s, hosts
        self._expected: dict[tuple[str, int], list[float]] = {}

    def plan(self, kind: str, ranks: int) -> Path:
        path = self.folder / f"{kind}-{ranks}.json"
        if not path.exists():
            pins = [word for pin in PLANS[kind] for word in ("--pin", pin.format(n=ranks))]
            words = [MODEL, "--cluster", f"local:{ranks}", "--global-batch", str(BATCH), "-o", str(path), *pins]
            subprocess.run([sys.executable, "-m", "meshwright", "plan", *words], check=True, capture_output=True)
        return path

    def expected(self, kind: str, ranks: int) -> list[float]:
        folder = self.folder / f"whole-{kind}-{ranks}"
        if (kind, ranks) not in self._expected and (told := folder.with_suffix(".json")).exists():
            self._expected[kind, ranks] = json.loads(told.read_text())["losses"]
        if (kind, ranks) not in self._expected:
            with job(self.plan(kind, ranks), Setting(kind, ranks, 1, True), folder) as whole:
                assert whole.end(PATIENCE_S) == "", whole.text()
                assert whole.codes() == [0], whole.text()
                self._expected[kind, ranks] = json.loads(whole.result.read_text())["losses"]
        return self._expected[kind, ranks]

    def run(self, number: int, seed: int) -> Run:
        random, fault, setting, found = drawn(number, seed, self.hosts)
        expected, plan = self.expected(setting.kind, setting.ranks), self.plan(setting.kind, setting.ranks)
        folder = self.folder / f"run-{number}"
        with _hosts(setting) as network, _small_disk(folder, found.fault == "fill the disk"):
            with job(plan, setting, folder, network) as first:
                self._disturb(first, fault, random, found)
            steps = _complete(folder)
            if found.damage != "nothing" and len(steps) > 1:
                _damage(folder / f"step-{steps[-1]:06d}", found.damage, random)
                steps.pop()
            filler(folder).unlink(missing_ok=True)
            self._again(plan, setting, folder, steps, expected, found)
        if not found.faults:
            shutil.rmtree(folder, ignore_errors=True)
        return found

    def _disturb(self, first: Job, fault: Fault, random: Random, found: Run) -> None:
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
        with job(plan, Setting(setting.kind, setting.ranks, 1, True), folder) as second:
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
def _hosts(setting: Setting) -> Iterator[ShapedNetwork | None]:
    if setting.hosts == 1:
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
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)], check=True)
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
    args = parser.parse_args(arguments)
    done: list[Run] = []
    began = time.monotonic()
    Path(args.out).parent.mkdir(exist_ok=True)
    warm(MODEL)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(args.keep or folder), args.grace, why_not() is None)
        for number in args.only or range(args.first, args.first + args.runs):
            if time.monotonic() - began > args.seconds:
                break
            done.append(bench.run(number, args.seed))
            print(done[-1], flush=True)
            Path(args.out).write_text(json.dumps([asdict(run) for run in done], indent=1) + "\n")
    kinds = Counter(fault.partition(":")[0] for run in done for fault in run.faults)
    print(f"{len(done)} runs, {sum(run.reached for run in done)} disturbed, {kinds.total()} faults {dict(kinds)}")
    return 1 if kinds else 0


if __name__ == "__main__":
    sys.exit(main())
