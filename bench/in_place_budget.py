"""`mw.fit` under budgets while the user keeps `model`: predicted and measured peak, the time of a step, on one GPU.

    python bench/in_place_budget.py --json out/in_place_budget.json     # 40, 25, 16, 11 GiB; model kept, and deleted
    python bench/in_place_budget.py --small --device cpu                # a dry run

The model, 1.1 billion parameters in bfloat16, is built on the device before it is planned, as a user would. Every case
is a process of its own whose allocator is held to the budget (torch.cuda.set_per_process_memory_fraction) from before
the model is built: one that needs more fails. Figures: the mean of `--steps` steps (zero_grad, step, AdamW) after two;
peak: torch.cuda.max_memory_allocated from the first step on; holes: what the allocator held beside the weights once
they were adopted; retries: how often it had to give memory back to go on. `model` is kept, or deleted once it was
adopted, or copied and deleted (the way before there was adoption): all must hold, and take equally long. Plans
are made once, as `mw.fit` makes them (`--plans FOLDER` keeps them for other
runs); with `--fit` every case calls `mw.fit` itself.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":  # the folder of this file would hide modules of the standard library: it has a `select`
    sys.path[0] = sys.path[0].rpartition("/")[0]

import argparse
import json
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import meshwright as mw
from meshwright.capture import capture
from meshwright.models.reference import Reference, parse_reference
from meshwright.plan import Plan
from meshwright.planner.one_device import fit_curves, room_bytes
from meshwright.runtime.fit import this_device
from meshwright.runtime.weights.packing import holes_bytes

LLAMA = "llama?layers=22&hidden=2048&heads=32&kv_heads=4&ffn=5632&vocab=32000&seq=2048&tied=false"
SMALL = "llama?layers=3&hidden=64&heads=4&kv_heads=4&ffn=128&vocab=256&seq=32&tied=false"
GIB = 1 << 30


def plans(args: argparse.Namespace, folder: Path) -> dict[str, str]:
    """A file by budget, planned as `mw.fit` does."""
    folder.mkdir(parents=True, exist_ok=True)
    found = {budget: folder / f"{budget}.json" for budget in args.budgets.split(",")}
    if not all(file.exists() for file in found.values()):
        program = capture(*parse_reference(args.model).meta(args.batch), precision="bf16")
        before = time.process_time()
        curves = fit_curves(program, this_device(), precision="bf16", compile=args.compile)
        print(f"curves in {time.process_time() - before:.1f} CPU s", flush=True)
        for budget, file in found.items():
            curves.within(room_bytes(int(float(budget) * GIB), this_device())).save(file)
    return {budget: str(file) for budget, file in found.items()}


def a_batch(reference: Reference, rows: int, device: torch.device) -> dict[str, torch.Tensor]:
    vocab = dict(reference.settings)["vocab"]
    shapes = reference.shapes(rows)
    return {name: torch.randint(0, vocab, shape, device=device) for name, (shape, _) in shapes.items()}


def case(args: argparse.Namespace) -> dict[str, Any]:
    """One budget, in a process of its own."""
    device, reference = torch.device(args.device), parse_reference(args.model)
    gpu = device.type == "cuda"
    budget = float(args.budget)
    if gpu:
        torch.cuda.set_per_process_memory_fraction(budget * GIB / torch.cuda.get_device_properties(0).total_memory)
    torch.manual_seed(0)
    with device:
        model = reference.build().to(torch.bfloat16)
    batch, copied = a_batch(reference, args.batch, device), args.way == "copied"
    if args.fit:
        trainer = mw.fit(model, batch, int(budget * GIB), precision="bf16", compile=args.compile, copy=copied)
    else:
        trainer = mw.parallelize(model, Plan.load(args.plan), compile=args.compile, copy=copied)
    optimizer = torch.optim.AdamW((trainer if copied else model).parameters(), lr=1e-5, fused=True)
    if args.way != "kept":
        del model
    holes = holes_bytes(device)
    if gpu:
        torch.cuda.reset_peak_memory_stats()
    losses = [_step(trainer, optimizer, batch) for _ in range(2)]
    _wait(gpu)
    before = time.perf_counter()
    for _ in range(args.steps):
        _step(trainer, optimizer, batch)
    _wait(gpu)
    seconds = (time.perf_counter() - before) / args.steps
    predicted = trainer.plan.predicted
    return {
        "ms": seconds * 1e3,
        "gib": torch.cuda.max_memory_allocated() / GIB if gpu else 0.0,
        "predicted_ms": predicted.step_s * 1e3,
        "predicted_gib": predicted.peak_bytes / GIB,
        "holes_gib": holes / GIB,
        "retries": torch.cuda.memory_stats()["num_alloc_retries"] if gpu else 0,
        "losses": [loss.item() for loss in losses],
    }


def _step(trainer: mw.Trainer, optimizer: torch.optim.Optimizer, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    optimizer.zero_grad()
    loss = trainer.step(batch)
    optimizer.step()
    return loss


def _wait(gpu: bool) -> None:
    if gpu:
        torch.cuda.synchronize()


def child(args: argparse.Namespace, budget: str, plan: str, way: str) -> dict[str, Any]:
    own = [sys.executable, __file__, "--model", args.model, "--batch", str(args.batch), "--device", args.device]
    own += ["--steps", str(args.steps), "--budget", budget, "--plan", plan, "--way", way]
    own += [flag for flag, wanted in (("--compile", args.compile), ("--fit", args.fit)) if wanted]
    done = subprocess.run(own, capture_output=True, text=True, check=False)
    if done.returncode:
        told = [text for text in done.stderr.splitlines() if "Error" in text] or ["no word"]
        return {"error": told[-1]}
    return dict(json.loads(done.stdout.splitlines()[-1]))


def run(args: argparse.Namespace, folder: Path) -> None:
    rows: dict[str, dict[str, Any]] = {}
    for budget, plan in plans(args, folder).items():
        for way in args.ways.split(","):
            name = f"{budget} GiB, model {way}"
            row = rows[name] = child(args, budget, plan, way)
            if "error" in row:
                print(f"{name:>24}  {row['error']}", flush=True)
                continue
            print(
                f"{name:>24}  {row['ms']:8.1f} ms (predicted {row['predicted_ms']:.1f})  {row['gib']:6.2f} GiB "
                f"(predicted {row['predicted_gib']:.2f}), holes {row['holes_gib']:.2f} GiB, {row['retries']} retries",
                flush=True,
            )
    if args.json:
        Path(args.json).parent.mkdir(parents=True, exist_ok=True)
        Path(args.json).write_text(json.dumps({"torch": torch.__version__, "rows": rows}, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=LLAMA)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--budgets", default="40,25,16,11", help="GiB, by commas")
    parser.add_argument("--ways", default="kept,deleted,copied")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--fit", action="store_true", help="every case plans for itself, by mw.fit")
    parser.add_argument("--small", action="store_true", help="a small model, to try it out")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--plans", help="a folder of plans")
    parser.add_argument("--json")
    parser.add_argument("--budget", help=argparse.SUPPRESS)
    parser.add_argument("--plan", help=argparse.SUPPRESS)
    parser.add_argument("--way", default="kept", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.budget:
        print(json.dumps(case(args)))
        return
    if args.small:
        args.model, args.budgets, args.steps = SMALL, "1,0.5", 1
    with tempfile.TemporaryDirectory() as folder:
        run(args, Path(args.plans or folder))


if __name__ == "__main__":
    main()
