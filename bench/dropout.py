"""Dropout by counter against torch's own, both compiled: forward and backward of `dropout(x * w)`, in seconds.

    python bench/dropout.py [--device cuda] [--json out/dropout.json]

Ours is a compiled segment pair, torch's is `torch.compile` on the same function; interleaved, medians. The loss is a
plain sum, so dropout is what there is to pay for. The last column is the same without any dropout.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meshwright.capture import capture
from meshwright.capture.counter import RandomState, random_state
from meshwright.capture.execute import run_graph
from meshwright.cluster import load_cluster
from meshwright.generate.pair import compiled_pair
from meshwright.generate.program import sharded_prologue, sharded_segments
from meshwright.planner.memory.plans import one_device_plan

P = 0.1
SHAPES = {"cuda": [(8, 2048, 4096), (16, 1024, 1024), (64, 128, 768)], "cpu": [(4, 512, 1024), (2, 128, 768)]}


class Dropped(nn.Module):
    def __init__(self, hidden: int, p: float) -> None:
        super().__init__()
        self.weight, self.p = nn.Parameter(torch.ones(hidden)), p

    def forward(self, x: Tensor) -> Tensor:
        product = x * self.weight
        return (F.dropout(product, self.p) if self.p else product).float().sum()


def ours(model: Dropped, x: Tensor) -> Callable[[], object]:
    """One step of the compiled pair, its key made anew each time."""
    program = capture(model, {"x": torch.empty(x.shape, dtype=x.dtype, device="meta")})
    plan = one_device_plan(program, load_cluster("local:1").mesh((1,)))
    prologue, graph = sharded_prologue(program, plan), sharded_segments(program, plan)[0]
    pair = compiled_pair(graph, x.device.type, (), ())
    weight = model.weight.detach().to(x.device)
    one, shared_values = torch.ones((), device=x.device), program.segments[0].shared_values
    step = 0

    def run() -> object:
        nonlocal step
        step += 1
        with torch.no_grad(), random_state(RandomState(0, step, 0, x.shape[0])):
            made = run_graph(prologue, {"x": x}, x.device)
            known = {"x": x} | dict(zip(program.shared_values, (made[name] for name in prologue.outputs), strict=True))
            given = dict(
                zip((v.name for v in graph.shared_values), (known[name] for name in shared_values), strict=True)
            )
            given |= {v.name: weight for v in graph.params}
            _, _, saved = pair.forward(given)
            return pair.backward(saved, {v.name: weight for v in graph.params}, [one])

    return run


def torchs(model: Dropped, x: Tensor) -> Callable[[], object]:
    placed = model.to(x.device)
    compiled = torch.compile(placed)

    def run() -> object:
        placed.weight.grad = None
        compiled(x).backward()
        return placed.weight.grad

    return run


def seconds(run: Callable[[], object], device: torch.device, times: int = 10) -> float:
    """Of one call, of several that follow each other."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(times):
        run()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - begun) / times


def measure(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype, rounds: int) -> dict[str, Any]:
    x = torch.randn(shape, device=device, dtype=dtype)

    def model(p: float) -> Dropped:
        return Dropped(shape[-1], p).to(dtype)

    ways = {"ours": ours(model(P), x), "torch": torchs(model(P), x), "none": torchs(model(0.0), x)}
    for run in ways.values():
        seconds(run, device, 3)
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, run in ways.items():
            found[name].append(seconds(run, device))
    medians = {f"{name}_s": statistics.median(values) for name, values in found.items()}
    return {"shape": shape, "dtype": str(dtype), **medians, "ratio": medians["ours_s"] / medians["torch_s"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", default="out/dropout.json")
    args = parser.parse_args()
    device, rows = torch.device(args.device), []
    for shape in SHAPES[device.type]:
        for dtype in (torch.bfloat16, torch.float32) if device.type == "cuda" else (torch.float32,):
            rows.append(measure(shape, device, dtype, args.rounds))
            one = rows[-1]
            figures = "  ".join(f"{name} {one[f'{name}_s'] * 1e6:9.1f} us" for name in ("ours", "torch", "none"))
            print(f"{one['shape']!s:18} {one['dtype']:15} {figures}   ours/torch {one['ratio']:.3f}", flush=True)
    Path(args.json).parent.mkdir(exist_ok=True)
    Path(args.json).write_text(json.dumps({"torch": torch.__version__, "rows": rows}, indent=1) + "\n")
    print(f"at most {max(row['ratio'] for row in rows):.3f}x torch's dropout (limit 1.1)")


if __name__ == "__main__":
    main()
