"""CPU seconds of whole planning commands, import and capture included, and their peak memory.

    python bench/planning.py [--case NAME ...]

Each case runs `meshwright plan` in a process of its own. The limits are those the project sets itself; PyTorch's
AutoParallel needs 235 CPU seconds and 4.3 GiB for the first one's shape on two cores. Writes out/planning.json.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

OUT = Path(__file__).parents[1] / "out"
LLAMA = ["llama3-8b", "--seq", "8192", "--global-batch", "64", "--cluster", "dgx-h100:8", "--precision", "mixed"]
GPT = ["gpt-39b", "--global-batch", "1024", "--cluster", "p3.16xlarge:8", "--precision", "mixed"]
LARGE = ["llama3-405b", "--global-batch", "2048", "--cluster", "dgx-h100:2048", "--precision", "mixed"]
CASES: dict[str, tuple[list[str], float, float]] = {
    "gpt-39b on 64 V100": (GPT, 90.0, 4.0),
    "llama3-405b on 16,384 H100": (LARGE, 180.0, 4.0),
    "llama3-405b of 16 layers": ([*LARGE, "--set", "layers=16"], 180.0, 4.0),
    "llama3-8b, one 8x8 mesh": ([*LLAMA, "--pin", "mesh=8x8"], 25.0, 1.5),
    "llama3-8b, all meshes and micro-batches of 64": (LLAMA, 90.0, 4.0),
    "llama3-8b of 4 layers": ([*LLAMA, "--set", "layers=4", "--pin", "mesh=8x8"], 25.0, 1.5),
    "llama3-8b of 32 layers": ([*LLAMA, "--set", "layers=32", "--pin", "mesh=8x8"], 25.0, 1.5),
    "gpt2 on 8 devices": (["gpt2", "--seq", "1024", "--global-batch", "64", "--cluster", "dgx-h100:1"], 25.0, 1.5),
}
DEPTHS = (
    ("llama3-8b of 32 layers", "llama3-8b of 4 layers", 1.2),
    ("llama3-405b on 16,384 H100", "llama3-405b of 16 layers", 1.5),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", action="append", choices=list(CASES), help="only these")
    chosen = parser.parse_args().case or list(CASES)
    rows = []
    for name in chosen:
        rows.append(measure(name, *CASES[name]))
        print(json.dumps(rows[-1]), flush=True)
    solving = {row["case"]: row["cpu_s"] - row["capture_s"] for row in rows if "cpu_s" in row}
    for deep, shallow, limit in DEPTHS:
        if deep in solving and shallow in solving:
            print(f"{deep}: {solving[deep] / solving[shallow]:.2f}x of {shallow}, capture aside (limit {limit})")
    OUT.mkdir(exist_ok=True)
    (OUT / "planning.json").write_text(json.dumps(rows, indent=1))
    return 0 if all(row["within"] for row in rows) else 1


def measure(name: str, arguments: list[str], limit_s: float, limit_gib: float) -> dict[str, Any]:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "meshwright", "plan", *arguments, "--json", "-"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        return {"case": name, "within": False, "error": done.stderr.strip()[-400:]}
    answer = json.loads(done.stdout)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    peak_gib = after.ru_maxrss / (1 << 20)  # of the largest child so far
    return {
        "case": name,
        "cpu_s": round(cpu_s, 2),
        "capture_s": round(answer["capture_seconds"], 2),
        "peak_gib": round(peak_gib, 2),
        "limit_s": limit_s,
        "limit_gib": limit_gib,
        "within": cpu_s <= limit_s and peak_gib <= limit_gib,
        "step_seconds": answer["predicted"]["step_seconds"],
        "gap": answer["optimality_gap"],
        "chosen": answer["chosen"],
        "best_baseline": min((b["step_seconds"] for b in answer["baselines"] if b["fits"]), default=None),
    }


if __name__ == "__main__":
    sys.exit(main())
