"""How far planning and running go: CPU seconds and peak memory of requests far larger than usual.

    python bench/scale.py [--case NAME ...]

Each case is a command in a process of its own, its children counted. The requests: a thousand layers no two of which
are alike, a program of 20,000 ops, a vocabulary of a million words, 65,536 devices and a host more, and runs on 64
and a million processes of this machine. Writes out/scale.json; exits with 1 where one takes more than MOST_S or
MOST_GIB, or does not end as it should.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
OUT = ROOT / "out"
MOST_S, MOST_GIB = 900, 4.0
"""CPU seconds of a case; GiB of its largest process."""
TINY = "gpt --set layers=1 --set hidden=64 --set heads=4 --set ffn=128 --set vocab=64 --seq 16"


@dataclass(frozen=True, slots=True)
class Case:
    """refused: the bound that its message has."""

    command: str
    refused: str = ""


CASES = {
    "1,000 unlike layers": Case(f"plan {__file__}:unlike_layers --cluster local:2"),
    "20,000 ops": Case(f"plan {__file__}:many_ops --cluster local:2"),
    "a million words": Case("plan gpt --set layers=2 --set vocab=1000000 --cluster local:2"),
    "65,536 devices": Case("plan gpt --set layers=2 --global-batch 65536 --cluster dgx-h100:8192"),
    "65,544 devices": Case("plan gpt --set layers=2 --cluster dgx-h100:8193", "at most 65,536"),
    "64 processes": Case(f"train {TINY} --global-batch 64 --nproc 64 --steps 2 --timeout 800"),
    "a million processes": Case(f"train {TINY} --nproc 1000000", "before it holds a model"),
}


def unlike_layers() -> tuple[Any, dict[str, Any]]:
    """A linear layer each, of widths 64 to 1,063."""
    return _chain([(64 + i, 65 + i) for i in range(1_000)], residual=False)


def many_ops() -> tuple[Any, dict[str, Any]]:
    """Layers of a linear, a relu and a sum."""
    return _chain([(64, 64)] * 6_666, residual=True)


def _chain(sizes: list[tuple[int, int]], residual: bool) -> tuple[Any, dict[str, Any]]:
    import torch

    class Chain(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(*size) for size in sizes)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                made = torch.relu(layer(x))
                x = x + made if residual else made
            return x.square().mean()

    return Chain(), {"x": torch.zeros(64, sizes[0][0])}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", action="append", choices=list(CASES), help="only these")
    rows = []
    for name in parser.parse_args().case or CASES:
        rows.append(measure(name, CASES[name]))
        print(json.dumps(rows[-1]), flush=True)
    OUT.mkdir(exist_ok=True)
    (OUT / "scale.json").write_text(json.dumps(rows, indent=1))
    return 0 if all(row["within"] for row in rows) else 1


def measure(name: str, case: Case) -> dict[str, Any]:
    """In a process of its own, so that the peak is that of this case alone."""
    begun_s = time.monotonic()
    child = [sys.executable, "-c", CHILD, *case.command.split()]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(child, capture_output=True, text=True, env=environment, cwd=ROOT)
    *said, last = done.stdout.splitlines()
    found = json.loads(last) | {"wall_s": round(time.monotonic() - begun_s, 1)}
    message = done.stderr.strip()[-400:]
    ended = case.refused in message if case.refused else found["code"] == 0
    within = ended and found["cpu_s"] <= MOST_S and found["peak_gib"] <= MOST_GIB
    return {"case": name, **found, "said": message if found["code"] else " ".join(said)[:200], "within": within}


CHILD = """
import json, resource, subprocess, sys
code = subprocess.run([sys.executable, "-m", "meshwright", *sys.argv[1:]]).returncode
used = resource.getrusage(resource.RUSAGE_CHILDREN)
cpu_s = round(used.ru_utime + used.ru_stime, 1)
print(json.dumps({"code": code, "cpu_s": cpu_s, "peak_gib": round(used.ru_maxrss / (1 << 20), 2)}))
"""


if __name__ == "__main__":
    sys.exit(main())
