"""What meshwright does, in a minute, without a GPU.

1. Three plans of one model: another memory limit, or another network, and another plan is the fastest. A page for each.
2. A plan for two processes of this machine, trained on them, step for step what plain PyTorch gives.
3. The checkpoint of these two processes, gone on with by one.

What it makes stays in a folder (default `out/demo`).
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import torch
from pretrain_gpt import GPT
from torch import Tensor

import meshwright as mw
from meshwright.cli import main as meshwright

MODEL = "gpt?layers=8&hidden=1024&heads=16&ffn=4096&vocab=16384&seq=1024"
HOSTS = """
name = "four-hosts"
backend = "nccl"
[device.h100]
memory = "80GiB"
memory_bandwidth = "3.35TB/s"
peaks = { bfloat16 = "989T", float32 = "67T" }
[level.host]
bandwidth = "450GB/s"
latency = "3us"
[level.network]
bandwidth = "12.5GB/s"
latency = "20us"
[[host]]
count = 4
device = "h100"
devices = 1
"""
"""Four hosts with a GPU each, joined by Ethernet of 100 Gbit/s."""
STEPS, MORE = 16, 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", default="out/demo", help="where everything goes")
    folder = Path(parser.parse_args().folder)
    if "RANK" in os.environ:
        return train_rank(folder)
    clock = time.perf_counter()
    folder.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)  # of a demo before this one

    print("1. Plans for GPUs that need not be here: one model, two memory limits, two networks", flush=True)
    (folder / "hosts.toml").write_text(HOSTS, encoding="utf-8")
    show_plan(folder / "one-host", "--cluster", "h100:4")
    show_plan(folder / "one-host-2GiB", "--cluster", "h100:4", "--memory", "2GiB", "--quiet")
    show_plan(folder / "four-hosts", "--cluster", str(folder / "hosts.toml"), "--quiet")

    print("\n2. A small GPT on two processes of this machine", flush=True)
    torch.manual_seed(0)
    plan = mw.plan(small_gpt(), next(iter(batches(1))), cluster="local:2")
    plan.save(folder / "local.json")
    print(plan)
    losses = train_on_two_processes(folder)
    plain = train_plainly()
    print(f"   loss {losses[0]:.4f} -> {losses[-1]:.4f} on two processes, {plain[STEPS - 1]:.4f} in plain PyTorch")

    print(f"\n3. One process goes on from the checkpoint of two, for {MORE} steps", flush=True)
    losses += go_on_alone(folder)
    worst = max(abs(one - other) / other for one, other in zip(losses, plain, strict=True))
    print(f"   loss {losses[-1]:.4f}, {plain[-1]:.4f} in plain PyTorch")
    print(f"   all {len(plain)} steps agree with plain PyTorch within {worst:.0e}, relative")
    print(f"\nin {folder}: a page (.html) and a file (.json) of each plan. Look at one-host.html, or ask further:")
    print(f"   meshwright explain {folder / 'one-host.json'}")
    print(f"done in {time.perf_counter() - clock:.0f} s")
    if worst > 1e-4 or losses[-1] > losses[0] - 0.5:
        raise SystemExit("the demo did not show what it should: see the losses above")


def show_plan(saved: Path, *words: str) -> None:
    """A command as it would be typed, run here: one process imports torch once for all of them."""
    made = ["plan", MODEL, "--global-batch", "32", *words, "-o", f"{saved}.json", "--report", f"{saved}.html"]
    print(f"\n$ meshwright {shlex.join(made)}", flush=True)
    if meshwright([*made, "--effort", "fast"]):
        raise SystemExit(f"no plan: {shlex.join(made)}")


def small_gpt() -> GPT:
    return GPT(vocab=128, hidden=128, heads=4, layers=2, longest=64)


def batches(count: int, first: int = 0) -> Iterable[dict[str, Tensor]]:
    """Rows of numbers that each go up by a step of their own: something to learn."""
    for seed in range(first, first + count):
        draw = torch.Generator().manual_seed(seed)
        start, stride = torch.randint(0, 128, (32, 1), generator=draw), torch.randint(1, 4, (32, 1), generator=draw)
        text = (start + stride * torch.arange(65)) % 128
        yield {"tokens": text[:, :-1].contiguous(), "targets": text[:, 1:].contiguous()}


def train_rank(folder: Path) -> None:
    """What each of the two processes runs: a usual training script."""
    torch.manual_seed(0)
    model = small_gpt()
    trainer = mw.parallelize(model, mw.Plan.load(folder / "local.json"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for step, batch in enumerate(batches(STEPS)):
        losses.append(trainer.step(batch, global_batch=True).item())
        optimizer.step()
        optimizer.zero_grad()
        if os.environ["RANK"] == "0" and step % 5 == 0:
            print(f"   step {step + 1}: loss {losses[-1]:.4f}", flush=True)
    mw.save(trainer, optimizer, folder / "checkpoints")
    if os.environ["RANK"] == "0":
        (folder / "losses.json").write_text(json.dumps(losses))


def train_on_two_processes(folder: Path) -> list[float]:
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", __file__, str(folder)]
    print(f"\n$ python {shlex.join(words)}", flush=True)
    subprocess.run([sys.executable, *words], check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    losses: list[float] = json.loads((folder / "losses.json").read_text())
    return losses


def train_plainly() -> list[float]:
    """The same steps without meshwright."""
    torch.manual_seed(0)
    model = small_gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for batch in batches(STEPS + MORE):
        loss = model(**batch)
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return losses


def go_on_alone(folder: Path) -> list[float]:
    model = small_gpt()
    trainer = mw.parallelize(model, mw.plan(model, next(iter(batches(1))), cluster="local:1"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    mw.load(trainer, optimizer, folder / "checkpoints")
    losses = []
    for batch in batches(MORE, first=STEPS):
        losses.append(trainer.step(batch, global_batch=True).item())
        optimizer.step()
        optimizer.zero_grad()
    return losses


if __name__ == "__main__":
    main()
