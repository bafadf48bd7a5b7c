"""Optimizer state and weights in the host's memory, on one GPU: measured against predicted, and equal to none of it.

    python bench/host_memory.py --json out/host_memory.json         # a GPU; 0.3 billion parameters in mixed precision
    python bench/host_memory.py --device cpu --small                # a dry run

Each way is the constraint `offload=`: nothing, half of the optimizer's state, all of it, the weights too. Every way
trains the same steps from the same start; losses must be equal bit for bit, since copies change no number. Figures: the
mean of `--steps` steps after two (zero_grad, step, fused AdamW), the peak of the allocator over them, both beside
what `plan.predicted` says.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":  # the folder of this file would hide modules of the standard library: it has a `select`
    sys.path[0] = sys.path[0].rpartition("/")[0]

import argparse
import gc
import json
import time
from pathlib import Path
from typing import Any

import torch

import meshwright as mw
from meshwright.models.reference import parse_reference

LLAMA = "llama?layers=12&hidden=1024&heads=16&kv_heads=4&ffn=2816&vocab=32000&seq=1024&tied=false"
SMALL = "llama?layers=2&hidden=64&heads=4&kv_heads=4&ffn=128&vocab=256&seq=32&tied=false"
WAYS = "none,optimizer:0.5,optimizer,weights"
GIB = 1 << 30


def trained(name: str, way: str, rows: int, memory: str, steps: int, device: torch.device) -> dict[str, Any]:
    """The model under one way of offloading, and what its steps took."""
    gc.collect()  # a trainer's parts know each other
    reference = parse_reference(name)
    torch.manual_seed(0)
    with device:
        model = reference.build()
    vocab = dict(reference.settings)["vocab"]
    batch = {key: torch.randint(0, vocab, shape, device=device) for key, (shape, _) in reference.shapes(rows).items()}
    pins = (f"offload={way}", "recompute=keep", "microbatch=1")
    trainer = mw.fit(model, batch, memory, precision="mixed", pins=pins)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    losses = [step(trainer, optimizer, batch) for _ in range(2)]
    _wait(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    before = time.perf_counter()
    losses += [step(trainer, optimizer, batch) for _ in range(steps)]
    _wait(device)
    seconds = (time.perf_counter() - before) / steps
    peak = torch.cuda.max_memory_allocated() if device.type == "cuda" else 0
    guess = trainer.plan.predicted
    return {
        "ms": 1e3 * seconds,
        "gib": peak / GIB,
        "predicted_ms": 1e3 * guess.step_s,
        "predicted_gib": guess.peak_bytes / GIB,
        "losses": [loss.item() for loss in losses],
    }


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def step(trainer: mw.Trainer, optimizer: torch.optim.Optimizer, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    optimizer.zero_grad()
    loss = trainer.step(batch)
    optimizer.step()
    return loss


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="a small model, to try it out")
    parser.add_argument("--ways", default=WAYS)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--memory", default="60GiB")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json")
    args = parser.parse_args()
    rows: dict[str, dict[str, Any]] = {}
    for way in args.ways.split(","):
        name = SMALL if args.small else LLAMA
        row = rows[way] = trained(name, way, args.batch, args.memory, args.steps, torch.device(args.device))
        row["equal"] = row["losses"] == next(iter(rows.values()))["losses"]
        print(
            f"{way:>14}  {row['ms']:8.1f} ms (predicted {row['predicted_ms']:.1f})  {row['gib']:6.2f} GiB (predicted "
            f"{row['predicted_gib']:.2f})  losses {'equal' if row['equal'] else 'NOT EQUAL'}",
            flush=True,
        )
        if args.json:
            Path(args.json).write_text(json.dumps(rows, indent=1) + "\n")
    return 0 if all(row["equal"] for row in rows.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
