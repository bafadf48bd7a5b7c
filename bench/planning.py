"""CPU seconds of whole planning commands, import and capture included, child processes counted; and their peak memory.

    python bench/planning.py [--case NAME ...] [--against 93178bc] [--limits]

Each case runs `meshwright plan` in a process of its own. With `--against` every case is also run, right after, from a
checkout of that commit (a git worktree, removed afterwards), and the ratio of the two decides: what a busy machine does
to one it does to the other. Prices of the two commits differ, so their steps are printed and not compared; plans of one
price list are compared by bench/plan_quality.py. Writes out/planning.json.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
OUT = ROOT / "out"
MIXED = "--precision mixed"
LLAMA = f"llama3-8b --seq 8192 --global-batch 64 {MIXED} --cluster"


@dataclass(frozen=True, slots=True)
class Case:
    """most_s: CPU seconds. ratio: of those of the other commit, at most; None where that does not end. refused: the
    answer is that nothing fits."""

    request: str
    most_s: float
    ratio: float | None
    refused: bool = False
    most_gib: float = 4.0


CASES = {
    "8b, 70 GiB": Case(f"{LLAMA} dgx-h100:1 --memory 70GiB", 20, 0.2),
    "8b, 40 GiB": Case(f"llama3-8b --seq 8192 --global-batch 16 {MIXED} --cluster dgx-h100:1 --memory 40GiB", 20, 0.25),
    "8b, tp=8": Case(f"{LLAMA} dgx-h100:1 --memory 70GiB --pin tp=8", 20, 0.15),
    "8b, 32 A100": Case(f"llama3-8b --seq 4096 --global-batch 256 {MIXED} --cluster dgx-a100:4", 35, 0.25),
    "8b, 64 H100": Case(f"llama3-8b --seq 8192 --global-batch 128 {MIXED} --cluster dgx-h100:8", 35, 0.3),
    "70b, 64 H100": Case(f"llama3-70b --seq 8192 --global-batch 128 {MIXED} --cluster dgx-h100:8", 70, 0.25),
    "t5-large, 16 A100": Case(f"t5-large --global-batch 128 {MIXED} --cluster dgx-a100:2", 30, 0.3),
    "gpt-39b, 64 V100": Case(f"gpt-39b --global-batch 1024 {MIXED} --cluster p3.16xlarge:8", 45, 0.6),
    "405b, 16,384 H100": Case(
        f"llama3-405b --seq 8192 --global-batch 2048 {MIXED} --cluster dgx-h100:2048", 30, 0.8, most_gib=1.0
    ),
    "8b, 65,536 H100": Case(f"llama3-8b --seq 8192 --global-batch 65536 {MIXED} --cluster dgx-h100:8192", 60, None),
    "70b, 8 H100, refused": Case(
        f"llama3-70b --seq 4096 --global-batch 8 {MIXED} --cluster dgx-h100:1", 15, 0.4, refused=True
    ),
}


@dataclass(frozen=True, slots=True)
class Run:
    """step_s: of the plan; None where there is none. peak_gib: of the largest child so far."""

    cpu_s: float
    peak_gib: float
    step_s: float | None
    gap: float | None
    said: str


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", action="append", choices=list(CASES), help="only these")
    parser.add_argument("--against", metavar="COMMIT", help="run each case from this commit too, or from this folder")
    parser.add_argument("--limits", action="store_true", help="exit with 1 where a case is over its limits")
    args = parser.parse_args()
    rows = []
    with checkout(args.against) as other:
        for name in args.case or CASES:
            rows.append(measure(name, CASES[name], other))
            print(json.dumps(rows[-1]), flush=True)
    OUT.mkdir(exist_ok=True)
    (OUT / "planning.json").write_text(json.dumps(rows, indent=1))
    return 0 if not args.limits or all(row["within"] for row in rows) else 1


@contextlib.contextmanager
def checkout(commit: str | None) -> Iterator[Path | None]:
    if commit is None or Path(commit).is_dir():
        yield Path(commit).resolve() if commit else None
        return
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "other"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--detach", str(place), commit], check=True, capture_output=True)
        try:
            yield place
        finally:
            subprocess.run([*git, "remove", "--force", str(place)], check=True, capture_output=True)


def measure(name: str, case: Case, other: Path | None) -> dict[str, object]:
    here = run(case, ROOT)
    then = run(case, other) if other and case.ratio is not None else None
    ratio = here.cpu_s / then.cpu_s if then else None
    within = here.cpu_s <= case.most_s and here.peak_gib <= case.most_gib and (here.step_s is None) == case.refused
    if ratio is not None and case.ratio is not None:
        within &= ratio <= case.ratio
    found: dict[str, object] = {"case": name, **asdict(here), "most_s": case.most_s, "within": within}
    if then:
        found |= {"then_cpu_s": then.cpu_s, "then_step_s": then.step_s, "ratio": ratio, "most_ratio": case.ratio}
    return found


def run(case: Case, place: Path) -> Run:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "meshwright", "plan", *case.request.split(), "--json", "-"]
    paths = filter(None, (str(place), os.environ.get("PYTHONPATH")))
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=place)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    peak_gib = after.ru_maxrss / (1 << 20)
    if done.returncode:
        return Run(round(cpu_s, 2), round(peak_gib, 2), None, None, done.stderr.strip()[-400:])
    answer = json.loads(done.stdout)
    step_s, gap = answer["solver_step_seconds"], answer["optimality_gap"]
    return Run(round(cpu_s, 2), round(peak_gib, 2), step_s, gap, str(answer.get("chosen", ""))[:200])


if __name__ == "__main__":
    sys.exit(main())
