"""Bytes per second between a GPU and pinned memory of its host: by size, each way alone, both at once, and
while kernels that move the device's memory run.

    python bench/host_link.py [--out out]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch

MIB = 1 << 20
SIZES = (1, 4, 16, 64, 256)


def rate(n_bytes: int, run: Callable[[], None], rounds: int = 5) -> tuple[float, float, float]:
    """GB/s: slowest, middle, fastest round."""
    count = max(4, 512 * MIB // n_bytes)
    found = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(count):
            run()
        torch.cuda.synchronize()
        found.append(count * n_bytes / (time.perf_counter() - start) / 1e9)
    return min(found), median(found), max(found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default="out")
    args = parser.parse_args()
    other, third = torch.cuda.Stream(), torch.cuda.Stream()
    busy = torch.empty(256 * MIB, dtype=torch.uint8, device="cuda")
    rows = []
    for mib in SIZES:
        here, there = (torch.empty(mib * MIB, dtype=torch.uint8, device="cuda") for _ in range(2))
        host, back = (torch.empty(mib * MIB, dtype=torch.uint8, pin_memory=True) for _ in range(2))

        def leave(host: torch.Tensor = host, here: torch.Tensor = here) -> None:
            with torch.cuda.stream(other):
                host.copy_(here, non_blocking=True)

        def come(back: torch.Tensor = back, there: torch.Tensor = there) -> None:
            with torch.cuda.stream(third):
                there.copy_(back, non_blocking=True)

        def both(leave: Callable[[], None] = leave, come: Callable[[], None] = come) -> None:
            leave()
            come()

        def loaded(leave: Callable[[], None] = leave) -> None:
            leave()
            busy.add_(1)

        for name, run in (("from device", leave), ("to device", come), ("both", both), ("from, busy", loaded)):
            start = time.perf_counter()
            for _ in range(20):
                run()
            host_s = (time.perf_counter() - start) / 20
            slow, middle, fast = rate(mib * MIB, run)
            rows.append({"MiB": mib, "way": name, "GB/s": middle, "slowest": slow, "fastest": fast, "host_s": host_s})
            print(f"{mib:4} MiB {name:<12} {middle:6.1f} GB/s ({slow:.1f} to {fast:.1f}), call {host_s * 1e6:.1f} us")
    Path(args.out).mkdir(parents=True, exist_ok=True)
    (Path(args.out) / "host_link.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
