"""Predicted against measured time of ops and of whole eager training steps on one GPU, calibrated in the same run.

    python bench/step_accuracy.py --cases out/step/cases.pkl                                # here; captures the models
    python bench/step_accuracy.py --cases out/step/cases.pkl --measure out/step/measured.json   # on the GPU
    python bench/step_accuracy.py --cases out/step/cases.pkl --compare out/step/measured.json   # anywhere

`--measure` calibrates the device first (into the same file), then measures ops and steps; `--compare` predicts from
that calibration alone. A step is zero_grad, forward, backward and AdamW (torch's defaults), run back to back; in fp32
(TF32 as torch has it) and in bf16. The process is held to one core, and a small step is timed beside each, since the
host's pace changes by the minute (`calibrate_pace`): a step's host part is priced at that pace. The limits: a median
error of 8 % per kind of op; a mean of 8 % and a worst of 15 % over the steps.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":  # the folder of this file would hide modules of the standard library: it has a `select`
    sys.path[0] = sys.path[0].rpartition("/")[0]

import argparse
import gc
import json
import os
import pickle
import random
import time
from dataclasses import replace
from itertools import pairwise
from math import prod
from pathlib import Path
from statistics import median
from typing import Any

MODELS = {
    "mlp": (64, 4096),
    "gpt?layers=4&hidden=256&heads=4&ffn=1024&vocab=8192&seq=128": (2, 64),
    "gpt2": (2, 8),
    "llama?layers=6&hidden=1024&heads=16&kv_heads=4&ffn=4096&vocab=32000&seq=1024": (1, 8),
    "llama?layers=4&hidden=2048&heads=16&kv_heads=16&ffn=5632&vocab=32000&seq=2048": (1, 4),
    "moe?layers=4&hidden=1024&heads=16&kv_heads=4&ffn=2048&vocab=32000&seq=512": (2, 16),
    "bert": (4, 32),
    "t5?layers=6": (2, 16),
    "vit": (8, 64),
    "resnet50": (16, 128),
    "unet": (4, 32),
    "amoebanet?layers=3": (8, 32),
    "mlp?layers=8&hidden=2048&inputs=2048": (32, 8192),
    "gpt?layers=6&hidden=512&heads=8&ffn=2048&vocab=16384&seq=256": (1, 16),
    "gpt2-medium?layers=8": (1, 4),
    "llama?layers=5&hidden=1536&heads=12&kv_heads=12&ffn=4096&vocab=32000&seq=512": (1, 6),
    "bert-large?layers=6&seq=384": (2, 8),
    "t5?layers=4&hidden=512&heads=8&ffn=2048&seq=384": (2, 12),
    "vit-large?layers=6": (4, 24),
    "wide-resnet?image=160": (8, 48),
    "unet?width=64&image=96": (2, 24),
    "amoebanet?layers=3&width=128": (8, 48),
}
BEFORE = {
    "mlp?layers=5&hidden=1024&inputs=768": (24, 6144),
    "gpt?layers=6&hidden=320&heads=5&ffn=1280&vocab=12000&seq=160": (3, 40),
    "gpt2?layers=5&seq=768": (1, 5),
    "llama?layers=5&hidden=1152&heads=9&kv_heads=3&ffn=3072&vocab=20000&seq=576": (1, 6),
    "bert?layers=7&seq=320": (2, 18),
    "t5?layers=4&hidden=448&heads=7&ffn=1792&seq=288": (2, 14),
    "vit?layers=7": (5, 44),
    "resnet50?image=176": (5, 60),
    "wide-resnet?image=128": (6, 40),
    "unet?width=80&image=80": (2, 14),
    "amoebanet?layers=3&width=144": (5, 36),
    "moe?layers=4&hidden=640&heads=10&kv_heads=5&ffn=1280&vocab=18000&seq=320": (2, 12),
}
HELD_OUT = {
    "mlp?layers=7&hidden=896&inputs=1152": (20, 5120),
    "gpt?layers=4&hidden=448&heads=7&ffn=1792&vocab=10000&seq=224": (2, 28),
    "gpt2?layers=7&seq=384": (2, 9),
    "llama?layers=3&hidden=1408&heads=11&kv_heads=11&ffn=3840&vocab=28000&seq=704": (1, 5),
    "bert?layers=6&seq=448": (2, 14),
    "t5?layers=5&hidden=576&heads=9&ffn=2304&seq=256": (2, 12),
    "vit?layers=9": (4, 36),
    "resnet50?image=208": (6, 48),
    "wide-resnet?image=144": (5, 36),
    "unet?width=112&image=56": (3, 18),
    "amoebanet?layers=3&width=112": (6, 40),
    "moe?layers=3&hidden=896&heads=14&kv_heads=7&ffn=1792&vocab=14000&seq=448": (2, 8),
}
"""Models and sizes at which nothing was looked at while the prices were made; BEFORE: those of an earlier check."""

PRECISIONS = ("fp32", "bf16")
KIND_LIMIT, MEAN_LIMIT, WORST_LIMIT = 0.08, 0.08, 0.15
OPS_PER_KIND = 16


def models(which: str) -> dict[str, tuple[int, ...]]:
    return {"seen": MODELS, "before": BEFORE, "held-out": HELD_OUT}[which]


def collect(which: str) -> dict[str, Any]:
    """Programs at both precisions and, per kind and precision, ops at the sizes that the models have them."""
    import torch

    from meshwright.capture import capture
    from meshwright.models.reference import parse_reference

    programs: dict[str, Any] = {}
    for name, batches in models(which).items():
        for precision in PRECISIONS:
            model, batch, loss = parse_reference(name).meta(batches[0])
            if precision == "bf16":
                model = model.to(torch.bfloat16)
                batch = {n: t.to(torch.bfloat16) if t.is_floating_point() else t for n, t in batch.items()}
            programs[f"{name} {precision}"] = capture(model, batch, loss)
            print(f"captured {name} {precision}", file=sys.stderr)
    return {"programs": programs, "ops": _choose_ops(programs, which)}


def _choose_ops(programs: dict[str, Any], which: str) -> list[dict[str, Any]]:
    from meshwright.profile import op_kind

    found: dict[tuple[str, str], dict[str, Any]] = {}
    for name, program in programs.items():
        reference, precision = name.rsplit(" ", 1)
        for size in models(which)[reference]:
            for graph in program.graphs:
                fixed = graph.at(size)
                values = fixed.values()
                for op in fixed.ops:
                    operands = [values[n] for n in op.operands()]
                    kind = op_kind(op)
                    heavy = sum(prod(v.type.sizes) for v in (*operands, *op.results)) > 1 << 16
                    if kind == "view" or not heavy or not any(v.type.is_float for v in op.results):
                        continue
                    key = f"{op.target} {[str(v.type) for v in operands]} {[str(v.type) for v in op.results]}"
                    case = {"kind": kind, "precision": precision, "op": op, "operands": operands}
                    found.setdefault((f"{kind} {precision}", key), case)
    rng, chosen = random.Random(0), []
    for group in sorted({group for group, _ in found}):
        targets: dict[str, list[dict[str, Any]]] = {}
        for (where, _), case in found.items():
            if where == group:
                targets.setdefault(case["op"].target, []).append(case)
        each = OPS_PER_KIND if len(targets) < 4 else 3
        for here in targets.values():
            chosen += rng.sample(here, min(each, len(here)))
    return chosen


def measure(cases: dict[str, Any], which: str, trace: bool, device_name: str, path: str) -> dict[str, Any]:
    import torch

    from meshwright.cluster.calibrate import calibrate
    from meshwright.cluster.calibrate_command import nominal
    from meshwright.cluster.calibrate_pace import Pace

    start = time.perf_counter()
    device = torch.device(device_name)
    say = lambda text: print(f"[{time.perf_counter() - start:6.1f} s] {text}", file=sys.stderr, flush=True)  # noqa: E731
    profile = calibrate(device, nominal(device), say)
    found: dict[str, Any] = {"torch": torch.__version__, "profile": profile, "ops": [], "steps": {}}
    write(path, found)
    for case in cases["ops"]:
        try:
            found["ops"].append(measure_op(case, device))
        except Exception as error:
            found["ops"].append({"error": f"{type(error).__name__}: {error}"[:200]})
    say(f"{len(found['ops'])} ops")
    write(path, found)
    pace = Pace(device)
    for name, batches in models(which).items():
        for precision in PRECISIONS:
            for size in batches:
                where = f"{name} batch={size} {precision}"
                try:
                    found["steps"][where] = measure_step(
                        name, size, precision, device, trace and size == batches[0], pace
                    )
                except Exception as error:
                    found["steps"][where] = {"error": f"{type(error).__name__}: {error}"[:300]}
                row = found["steps"][where]
                say(f"{where}: {row.get('error') or round(row['step_s'] * 1e3, 3)}")
                write(path, found)
                gc.collect()
                torch.cuda.empty_cache() if device.type == "cuda" else None
    found["seconds"] = time.perf_counter() - start
    return found


def measure_op(case: dict[str, Any], device: Any) -> dict[str, float]:
    """Seconds of device time, forward and backward."""
    import torch

    from meshwright.capture.targets import call
    from meshwright.cluster.calibrate_clock import clock_for

    clock, op = clock_for(device), case["op"]
    tensors = {name: _operand(op, i, case["operands"], device) for i, name in enumerate(op.operands())}
    run = lambda: call(op, tensors, device)  # noqa: E731
    row = {"forward_s": clock.device_s(run), "backward_s": 0.0}
    wrt = list({id(t): t for t in tensors.values() if t.requires_grad}.values())
    result = run()[0]
    if wrt and result.requires_grad:
        gradient = torch.randn_like(result)
        row["backward_s"] = clock.device_s(lambda: torch.autograd.grad(result, wrt, gradient, retain_graph=True))
    return row


def _operand(op: Any, index: int, operands: list[Any], device: Any) -> Any:
    import torch

    value = operands[index]
    shape, dtype = value.type.sizes, getattr(torch, value.type.dtype)
    if value.type.is_float:
        if "attention" in op.target and len(shape) == 4 and index < 3:
            b, h, s, d = shape
            return torch.randn(b, s, h, d, device=device).to(dtype).transpose(1, 2).requires_grad_(value.grad)
        return torch.randn(shape, device=device).to(dtype).requires_grad_(value.grad)
    if "grouped" in op.target:
        rows = operands[0].type.sizes[0]
        return (torch.arange(1, shape[0] + 1, device=device) * (rows // shape[0])).to(dtype)
    high = 2
    if "embedding" in op.target or "index" in op.target:
        high = operands[0].type.sizes[0]
    if "cross_entropy" in op.target:
        high = operands[0].type.sizes[1]
    return torch.randint(0, high, shape, device=device).to(dtype)


def measure_step(name: str, size: int, precision: str, device: Any, trace: bool, pace: Any) -> dict[str, Any]:
    import torch

    from meshwright.models.reference import parse_reference

    reference = parse_reference(name)
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    settings = dict(reference.settings)
    high = settings.get("vocab") or settings.get("classes") or 100
    with torch.device(device):
        model = reference.build().to(dtype).train()
        batch = {n: _batch_tensor(shape, kind, dtype, high) for n, (shape, kind) in reference.shapes(size).items()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    sync = torch.cuda.synchronize if device.type == "cuda" else (lambda: None)
    marks: list[float] = []

    def step() -> None:
        marks.append(time.perf_counter())
        optimizer.zero_grad(set_to_none=True)
        loss = model(**batch)
        marks.append(time.perf_counter())
        loss.backward()
        marks.append(time.perf_counter())
        optimizer.step()
        marks.append(time.perf_counter())

    def several(n: int) -> float:
        sync()
        start = time.perf_counter()
        for _ in range(n):
            step()
        sync()
        return (time.perf_counter() - start) / n

    several(3)
    once_s = several(2)
    count = max(4, min(40, int(0.08 / once_s)))
    times, paces, phases = [], [pace.now_s()], []
    for _ in range(5 if once_s > 0.03 else 11):
        marks.clear()
        times.append(several(count))
        paces.append(pace.now_s())
        phases += [[after - before for before, after in pairwise(marks[i : i + 4])] for i in range(0, len(marks), 4)]
    host_s = [median(column) for column in zip(*phases, strict=True)]
    row: dict[str, Any] = {
        "step_s": median(times),
        "times": times,
        "host_s": host_s,
        "pace_s": median(paces),
        "paces": paces,
    }
    if device.type == "cuda" and trace:
        row["phases_s"] = _phases(model, batch, optimizer)
        row["trace"] = _trace(step)
    return row


def _phases(model: Any, batch: Any, optimizer: Any) -> list[float]:
    """Seconds by the device's clock between the phases of one step, when the queue runs full."""
    import torch

    events = [torch.cuda.Event(enable_timing=True) for _ in range(4)]
    for _ in range(2):
        optimizer.zero_grad(set_to_none=True)
        events[0].record()
        loss = model(**batch)
        events[1].record()
        loss.backward()
        events[2].record()
        optimizer.step()
        events[3].record()
    torch.cuda.synchronize()
    return [a.elapsed_time(b) * 1e-3 for a, b in pairwise(events)]


def _trace(step: Any) -> list[Any]:
    """Per operator: calls, microseconds of its own kernels, microseconds of its own on the host."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
        step()
        torch.cuda.synchronize()
    rows = [
        [e.key[:80], e.count, round(e.self_device_time_total, 1), round(e.self_cpu_time_total, 1)]
        for e in found.key_averages()
    ]
    return sorted(rows, key=lambda row: -row[2])


def _batch_tensor(shape: tuple[int, ...], kind: str, dtype: Any, high: int) -> Any:
    import torch

    if kind.startswith("float"):
        return torch.randn(shape, dtype=dtype)
    return torch.randint(0, high, shape, dtype=getattr(torch, kind))


def compare(cases: dict[str, Any], measured: dict[str, Any]) -> dict[str, Any]:
    """Errors per kind of op and per step, of predictions made from the calibration alone."""
    from tempfile import TemporaryDirectory

    from meshwright.cluster.calibrate_command import write_profile
    from meshwright.cluster.profile_load import device_of

    with TemporaryDirectory() as folder:
        path = Path(folder) / "profile.json"
        write_profile(path, measured["profile"])
        device = device_of(str(path))
        kinds = compare_ops(cases["ops"], measured["ops"], device)
        steps = compare_steps(cases["programs"], measured, device)
    errors = [abs(row["error"]) for row in steps.values()]
    mean, worst = sum(errors) / len(errors), max(errors)
    count = len({where.split(" ")[0] for where in steps})
    print(f"{len(steps)} steps of {count} models: mean error {100 * mean:.1f} %, worst {100 * worst:.1f} %")
    seconds = measured["profile"]["measured"]["seconds"]
    return {
        "device": measured["profile"]["name"],
        "torch": measured["torch"],
        "calibration_seconds": seconds,
        "kinds": kinds,
        "models": count,
        "mean_error": mean,
        "worst_error": worst,
        "steps": steps,
    }


def compare_ops(ops: list[dict[str, Any]], measured: list[dict[str, Any]], device: Any) -> dict[str, Any]:
    from meshwright.price.compute import whole_op_seconds

    rows: dict[str, list[dict[str, Any]]] = {}
    for case, real in zip(ops, measured, strict=False):
        if "error" in real:
            print(f"  {case['op'].target}: {real['error']}")
            continue
        values = dict(zip(case["op"].operands(), case["operands"], strict=True))
        guess = whole_op_seconds(case["op"], values, device)
        predicted_s, real_s = guess.forward_s + guess.backward_s, real["forward_s"] + real["backward_s"]
        shapes = [str(value.type) for value in case["operands"]]
        row = {"op": case["op"].target, "operands": shapes, "predicted_s": predicted_s, "measured_s": real_s}
        rows.setdefault(case["kind"], []).append(row | {"error": predicted_s / real_s - 1})
    found: dict[str, Any] = {}
    for kind, each in sorted(rows.items()):
        found[kind] = {"ops": len(each), "median_error": median(abs(row["error"]) for row in each), "rows": each}
        print(f"{kind}: {len(each)} ops, median error {100 * found[kind]['median_error']:.1f} %")
    return found


def compare_steps(programs: dict[str, Any], measured: dict[str, Any], device: Any) -> dict[str, Any]:
    """The host's part is priced at the pace that was seen beside each step."""
    from meshwright.price.step import step_seconds

    found: dict[str, Any] = {}
    usual_s = measured["profile"]["measured"].get("pace_s")
    for where, real in measured["steps"].items():
        if "error" in real:
            print(f"        {where}: {real['error'][:100]}")
            continue
        name, size, precision = where.rsplit(" ", 2)
        now = real.get("pace_s", usual_s) / usual_s if usual_s else 1.0
        host = replace(device, launch_s=device.launch_s * now)
        guess = step_seconds(programs[f"{name} {precision}"].at_batch(int(size.removeprefix("batch="))), host)
        error = guess.step_s / real["step_s"] - 1
        found[where] = {"measured_s": real["step_s"], "predicted_s": guess.step_s, "error": error}
        found[where] |= {"device_s": guess.device_s, "host_s": guess.host_s, "pace": now}
        print(
            f"{100 * error:+6.1f} % {where}: {real['step_s'] * 1e3:.2f} ms "
            f"(device {guess.device_s * 1e3:.2f}, host {guess.host_s * 1e3:.2f} at {now:.2f} of its usual pace)"
        )
    return found


def pinned(device: str) -> int:
    """Holds this process to the core on which asking for small ops takes least just now.

    Neighbours of a virtual machine make some cores half as fast as others. A step's forward and backward are asked for
    by two threads, one after the other: on two cores each would have a pace of its own.
    """
    import torch

    one, took = torch.ones(1, device=device), dict.fromkeys(sorted(os.sched_getaffinity(0)), 0.0)
    for core in [*took, *took]:
        os.sched_setaffinity(0, [core])
        rounds = []
        for _ in range(30):
            start = time.perf_counter()
            for _ in range(50):
                one.add(1)
            rounds.append((time.perf_counter() - start) / 50)
        took[core] = max(took[core], median(rounds))
    print({core: f"{1e6 * took_s:.1f} us" for core, took_s in took.items()}, file=sys.stderr)
    best = min(took, key=lambda core: took[core])
    os.sched_setaffinity(0, [best])
    return best


def write(path: str, found: dict[str, Any]) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", default="out/step/cases.pkl", help="captured models and ops; made if not there")
    parser.add_argument("--measure", metavar="FILE", help="calibrate and measure here, and write the figures")
    parser.add_argument("--compare", metavar="FILE", help="predict what this file measured")
    parser.add_argument("--models", choices=("seen", "before", "held-out"), default="held-out")
    parser.add_argument("--trace", action="store_true", help="also keep which operators took the time")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", default="out/step_accuracy.json", help="where --compare writes")
    args = parser.parse_args()
    if args.measure:
        print(f"on core {pinned(args.device)}", file=sys.stderr)
    if not Path(args.cases).exists():
        Path(args.cases).parent.mkdir(parents=True, exist_ok=True)
        Path(args.cases).write_bytes(pickle.dumps(collect(args.models)))
    cases = pickle.loads(Path(args.cases).read_bytes())
    if args.measure:
        write(args.measure, measure(cases, args.models, args.trace, args.device, args.measure))
    if not args.compare:
        return 0
    found = compare(cases, json.loads(Path(args.compare).read_text(encoding="utf-8")))
    write(args.json, found)
    kinds_hold = all(kind["median_error"] <= KIND_LIMIT for kind in found["kinds"].values())
    return int(not kinds_hold or found["mean_error"] > MEAN_LIMIT or found["worst_error"] > WORST_LIMIT)


if __name__ == "__main__":
    sys.exit(main())
