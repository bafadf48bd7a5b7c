"""One rank on a GPU, compiled: our pairs against `torch.compile` on the plain model, same weights, same data, bf16.

    python bench/overhead.py --gpu [MODEL,BATCH ...]

Both live in one process and step in turn; medians of interleaved repeats. Memory is each one's own peak: what its step
takes above what is there before, and what it keeps between steps. Ours is planned inside the memory that the other was
seen to take, and compiled in runs of segments (`--unit segment`: each by itself).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

CASES = (("gpt2-medium?seq=1024", 8), ("gpt?layers=8&hidden=512&heads=8&ffn=2048&vocab=8192&seq=256", 16))
STEPS = 10


def gpu_main(cases: list[str], out: str, repeats: int, unit: str = "run") -> int:
    found = []
    for name, batch in [(text.rpartition(",")[0], int(text.rpartition(",")[2])) for text in cases] or CASES:
        row = _case(name, batch, repeats, unit)
        found.append(row)
        mine, theirs = row["ours"], row["torch.compile"]
        print(
            f"{name}, batch {batch}: ours ({mine['units']}) {mine['step_s'] * 1e3:.2f} ms, "
            f"{mine['peak_bytes'] / 2**20:.0f} MiB; "
            f"torch.compile {theirs['step_s'] * 1e3:.2f} ms, {theirs['peak_bytes'] / 2**20:.0f} MiB; "
            f"ratio {row['ratio']:.3f}, memory {row['memory']:.3f}; "
            f"first losses {mine['loss']:.4f}, {theirs['loss']:.4f}; "
            f"ready after {mine['ready_s']:.0f} and {theirs['ready_s']:.0f} s",
            flush=True,
        )
    Path(out).write_text(json.dumps(found, indent=1) + "\n")
    return 0


def _case(name: str, batch: int, repeats: int, unit: str) -> dict[str, Any]:
    import torch

    from meshwright.models.reference import parse_reference

    reference = parse_reference(name)
    torch.manual_seed(0)
    device = torch.device("cuda")
    data = {key: torch.randint(0, 256, shape, device=device) for key, (shape, _) in reference.shapes(batch).items()}
    ways: dict[str, Callable[[], Any]] = {}
    found: dict[str, dict[str, Any]] = {}
    for way in ("torch.compile", "ours"):
        torch.cuda.synchronize()
        before, start = torch.cuda.memory_allocated(), time.perf_counter()
        torch.manual_seed(1)
        units = ""
        if way == "ours":
            step, units = _ours(reference, batch, data, found["torch.compile"]["peak_bytes"], unit)
        else:
            step = _compiled(reference, batch, data)
        loss = float(step())
        step()
        torch.cuda.synchronize()
        kept = torch.cuda.memory_allocated() - before
        found[way] = {"loss": loss, "ready_s": time.perf_counter() - start, "kept": kept, "units": units}
        _peak(step, found[way])
        ways[way] = step
    times: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(repeats):
        for way, step in ways.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(STEPS):
                step()
            torch.cuda.synchronize()
            times[way].append((time.perf_counter() - start) / STEPS)
    for way, spent in times.items():
        found[way] |= {"step_s": median(spent), "all": spent}
    mine, theirs = found["ours"], found["torch.compile"]
    more = {"ratio": theirs["step_s"] / mine["step_s"], "memory": mine["peak_bytes"] / theirs["peak_bytes"]}
    return {"model": name, "batch": batch, **found, **more}


def _peak(step: Callable[[], Any], found: dict[str, Any]) -> None:
    import torch

    here = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    found["peak_bytes"] = torch.cuda.max_memory_allocated() - here + found["kept"]


def _compiled(reference: Any, batch: int, data: dict[str, Any]) -> Callable[[], Any]:
    import torch

    model = reference.build().to("cuda", torch.bfloat16)
    run = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step() -> Any:
        loss = run(**data)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def _ours(reference: Any, batch: int, data: dict[str, Any], most: int, unit: str) -> tuple[Callable[[], Any], str]:
    import torch

    import meshwright as mw
    from meshwright.capture import capture
    from meshwright.planner.one_device import fit_curves
    from meshwright.runtime.fit import this_device

    program = capture(*reference.meta(batch), precision="bf16")
    plan = fit_curves(program, this_device(), precision="bf16", compile=True).within(most, "flat")
    trainer = mw.parallelize(reference.build(), plan, compile=unit)
    optimizer = torch.optim.AdamW(trainer.parameters(), lr=1e-4, fused=True)

    def step() -> Any:
        loss = trainer.step(data)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    runs = trainer._interpreter.parts[0].generated.runs
    return step, f"{len(runs)} runs" if runs else "segments"
