"""Long runs: do memory, handles and threads grow, do steps get slower, do runs repeat, do plans agree?

    python bench/long_run.py flat                # 10,000 steps on 2 ranks, saving every 500
    python bench/long_run.py agree               # 500 steps under five plans, each twice; --svg FILE draws the curves

`flat` looks every hundred steps at each rank: resident bytes, open handles, threads, and the median CPU seconds of a
step; the first two steps, which allocate, are left out. `agree` holds that two runs of a plan give the same losses and
the same checkpoint, bit for bit, and that the losses of different plans differ by at most 1e-5, relative, at every
step. Writes out/long_run.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

MODEL = "gpt?layers={layers}&hidden=32&heads=4&ffn=64&vocab=128&seq=16"
BATCH, LR = 8, 1e-3
PLANS = {"one process": (1, ()), "dp=2": (2, ("dp=2", "zero=0")), "zero=3": (2, ("dp=2", "zero=3")),
         "tp=2": (2, ("mesh=2", "tp=2")), "pp=2": (2, ("pp=2",))}  # fmt: skip
TOLERANCE = 1e-5
"""How far the losses of two plans may be apart, relative, at any of 500 steps in float32."""
LOOK = 100


@dataclass(frozen=True, slots=True)
class Look:
    """A rank after so many steps. cpu_s: of a step, the median since the last look."""

    step: int
    resident_bytes: int
    handles: int
    threads: int
    cpu_s: float


def _rank(told: dict[str, Any]) -> int:
    """One rank: `meshwright train`'s own loop, looked at."""
    import torch.distributed as dist

    from meshwright.runtime.job import progress, worker

    looks: list[Look] = []
    steps: list[float] = []

    class Watched(progress.Progress):
        last_s = 0.0

        def step(self, loss: float, samples: Sequence[int] = ()) -> None:
            super().step(loss, samples)
            now_s = time.process_time()
            if self.done > 2:
                steps.append(now_s - self.last_s)
            if self.done % LOOK == 0:
                looks.append(_look(self.done, median(steps)))
                steps.clear()
            self.last_s = time.process_time()

    worker.Progress = Watched  # type: ignore[misc, attr-defined]
    found = worker.train(worker.Job(**told["job"]))
    Path(f"{told['result']}.{dist.get_rank()}").write_text(
        json.dumps({"losses": found["losses"], "looks": [asdict(look) for look in looks]})
    )
    dist.barrier()
    dist.destroy_process_group()
    return 0


def _look(step: int, cpu_s: float) -> Look:
    own = Path("/proc/self")
    resident = int((own / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return Look(step, resident, len(list((own / "fd").iterdir())), len(list((own / "task").iterdir())), cpu_s)


def run(
    folder: Path, name: str, steps: int, every: int | None, again: int = 0, layers: int = 2
) -> list[dict[str, Any]]:
    """What each rank saw."""
    from meshwright.runtime.job.launch import launch

    ranks, pins = PLANS[name]
    plan = folder / f"{name}.json"
    if not plan.exists():
        words = [
            MODEL.format(layers=layers),
            "--cluster",
            f"local:{ranks}",
            "--global-batch",
            str(BATCH),
            "-o",
            str(plan),
        ]
        words += [word for pin in pins for word in ("--pin", pin)]
        subprocess.run([sys.executable, "-m", "meshwright", "plan", *words], check=True, capture_output=True)
    place = folder / f"{name}-{again}"
    job = {"plan": str(plan), "steps": steps, "lr": LR, "seed": 0, "result": "", "quiet": True}
    job |= {"folder": str(place), "every": every}
    launch("long_run", ["rank", json.dumps({"job": job, "result": str(place)})], ranks)
    return [json.loads(Path(f"{place}.{rank}").read_text()) for rank in range(ranks)]


def flat(folder: Path, steps: int) -> dict[str, Any]:
    found = run(folder, "zero=3", steps, 500, layers=1)
    rows = []
    for rank, one in enumerate(found):
        first, warm, last = one["looks"][0], one["looks"][min(9, len(one["looks"]) - 1)], one["looks"][-1]
        row = {key: (first[key], warm[key], last[key]) for key in ("resident_bytes", "handles", "threads", "cpu_s")}
        rows.append(row | {"slower": last["cpu_s"] / first["cpu_s"] - 1})
        print(
            f"rank {rank}, after {first['step']}, {warm['step']} and {last['step']} steps: resident MiB "
            f"{', '.join(f'{value / 2**20:.1f}' for value in row['resident_bytes'])}; handles {row['handles']}; "
            f"threads {row['threads']}; CPU ms a step {', '.join(f'{1e3 * value:.3f}' for value in row['cpu_s'])} "
            f"({rows[-1]['slower']:+.1%})"
        )
    return {"steps": steps, "ranks": rows, "looks": [one["looks"] for one in found]}


def agree(folder: Path, names: list[str], steps: int, svg: str | None) -> dict[str, Any]:
    curves, equal = {}, {}
    for name in names:
        twice = [run(folder, name, steps, None, again)[0]["losses"] for again in range(2)]
        saved = [_saved(folder / f"{name}-{again}") for again in range(2)]
        curves[name], equal[name] = twice[0], twice[0] == twice[1] and saved[0] == saved[1] and bool(saved[0])
    plain = curves[names[0]]
    apart = {
        name: max(abs(a - b) / abs(b) for a, b in zip(losses, plain, strict=True)) for name, losses in curves.items()
    }
    print(f"| plan | {' | '.join(f'step {n}' for n in _shown(steps))} | farthest from the first | twice the same |")
    print("|---|" + "---|" * (len(_shown(steps)) + 2))
    for name, losses in curves.items():
        values = " | ".join(f"{losses[n - 1]:.6f}" for n in _shown(steps))
        print(f"| {name} | {values} | {apart[name]:.1e} | {'bit-equal' if equal[name] else 'NO'} |")
    if svg:
        Path(svg).write_text(_drawn(curves))
    return {"steps": steps, "tolerance": TOLERANCE, "apart": apart, "equal": equal, "losses": curves}


def _shown(steps: int) -> list[int]:
    return sorted({1, steps // 10, steps // 4, steps // 2, steps} - {0})


def _saved(folder: Path) -> dict[str, bytes]:
    """The tensors' checksums of the only checkpoint."""
    return {path.name: path.read_bytes() for path in sorted(folder.glob("step-*/*.sums"))}


def _drawn(curves: dict[str, list[float]]) -> str:
    """The losses over the steps, one line a plan, from wide to narrow: where they agree all can be seen."""
    width, height, left, top = 640, 320, 50, 20
    low, high = min(map(min, curves.values())), max(map(max, curves.values()))
    steps = max(map(len, curves.values()))
    colours = ("#bbbbbb", "#e69f00", "#56b4e9", "#009e73", "#000000")
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width + 80} {height + 60}" font-size="12">']
    parts.append(f'<rect x="{left}" y="{top}" width="{width}" height="{height}" fill="none" stroke="#888"/>')
    for number, (name, losses) in enumerate(curves.items()):
        points = " ".join(
            f"{left + width * step / steps:.1f},{top + height * (high - loss) / (high - low):.1f}"
            for step, loss in enumerate(losses, 1)
        )
        colour, broad = colours[number % len(colours)], 9 - 2 * number
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="{max(1, broad)}"/>')
        parts.append(f'<text x="{left + width - 90}" y="{top + 20 + 16 * number}" fill="{colour}">{name}</text>')
    parts += [f'<text x="5" y="{top + 10}">{high:.2f}</text>', f'<text x="5" y="{top + height}">{low:.2f}</text>']
    parts.append(f'<text x="{left}" y="{top + height + 20}">loss over {steps} steps</text></svg>')
    return "\n".join(parts) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("flat", "agree", "rank"))
    parser.add_argument("told", nargs="?", help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--plans", help="some of them, with commas")
    parser.add_argument("--svg", metavar="FILE", help="draw the curves of `agree`")
    parser.add_argument("-o", "--out", default="out/long_run.json")
    args = parser.parse_args()
    if args.what == "rank":
        return _rank(json.loads(args.told))
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    with tempfile.TemporaryDirectory() as folder:
        if args.what == "flat":
            found = flat(Path(folder), args.steps or 10_000)
            fine = all(row["slower"] <= 0.05 for row in found["ranks"])
        else:
            found = agree(
                Path(folder), args.plans.split(",") if args.plans else list(PLANS), args.steps or 500, args.svg
            )
            fine = all(found["equal"].values()) and max(found["apart"].values()) <= TOLERANCE
    Path(args.out).parent.mkdir(parents=True, exist_ok=True)
    Path(args.out).write_text(json.dumps(found, indent=1) + "\n")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
