"""Predicted against measured time of ops and of whole eager training steps on one GPU, calibrated in the same run.

    python bench/step_accuracy.py --cases out/step/cases.pkl                                # here; captures the models
    python bench/step_accuracy.py --cases out/step/cases.pkl --measure out/step/measured.json   # on the GPU
    python bench/step_accuracy.py --cases out/step/cases.pkl --compare out/step/measured.json   # anywhere

`--measure` calibrates the device first (into the same file), then measures ops and steps; `--compare` predicts from
that calibration alone. A step is zero_grad, forward, backward and AdamW (torch's defaults), a few back to back; in fp32
(TF32 as torch has it) and in bf16. All models take turns, round after round, and the host's pace (a small step of its
own, `calibrate.pace`) is read before and after each. Every burst is held against the prediction with the host's part
at the pace beside it; a step's error is the median over the bursts during which the pace stayed. The limits: a median
error of 8 % per kind of op; a mean of 8 % and a worst of 15 % over the steps.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":  # the folder of this file would hide modules of the standard library: it has a `select`
    sys.path[0] = sys.path[0].rpartition("/")[0]
    # The process is held to one core: threads of linear algebra that share it wait for each other for minutes.
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import argparse
import json
import pickle
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

KIND_LIMIT, MEAN_LIMIT, WORST_LIMIT = 0.08, 0.08, 0.15


def compare(cases: dict[str, Any], measured: dict[str, Any]) -> dict[str, Any]:
    """Errors per kind of op and per step, of predictions made from the calibration alone."""
    from tempfile import TemporaryDirectory

    from meshwright.cluster.calibrate.command import write_profile
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
    from meshwright.cost.op.compute import whole_op_seconds

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
    """Each burst against the prediction with the host's part at the pace that was seen beside it; the middle error."""
    found: dict[str, Any] = {}
    for where, real in measured["steps"].items():
        if "error" in real:
            print(f"        {where}: {real['error'][:100]}")
            continue
        name, size, precision = where.rsplit(" ", 2)
        program = programs[f"{name} {precision}"].at_batch(int(size.removeprefix("batch=")))
        rows = [_compared(program, burst, device, measured["profile"]["measured"]) for burst in _steady(real["bursts"])]
        row = sorted(rows, key=lambda row: float(row["error"]))[len(rows) // 2]
        errors = [row["error"] for row in rows]
        found[where] = row | {"bursts": len(rows), "error": median(errors)}
        print(
            f"{100 * found[where]['error']:+6.1f} % {where}: {row['measured_s'] * 1e3:.2f} ms (device "
            f"{row['device_s'] * 1e3:.2f}, host {row['host_s'] * 1e3:.2f} at {row['pace']:.2f} of its usual pace; "
            f"{len(rows)} bursts, {100 * min(errors):+.0f} to {100 * max(errors):+.0f} %)"
        )
    return found


def _steady(bursts: list[dict[str, float]]) -> list[dict[str, float]]:
    """Those beside which the host's pace stayed, where there are enough of them."""
    steady = [burst for burst in bursts if abs(burst["change"]) <= 0.1]
    return steady if len(steady) >= 5 else bursts


def _compared(program: Any, burst: dict[str, float], device: Any, usual: dict[str, float]) -> dict[str, float]:
    from meshwright.price.step import step_seconds

    pace = burst["pace_s"] / usual["pace_s"] if "pace_s" in usual else 1.0
    guess = step_seconds(program, replace(device, launch_s=device.launch_s * pace))
    return {
        "measured_s": burst["step_s"],
        "predicted_s": guess.step_s,
        "error": guess.step_s / burst["step_s"] - 1,
        "device_s": guess.device_s,
        "host_s": guess.host_s,
        "pace": pace,
    }


def main() -> int:
    from bench.step.cases import collect

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", default="out/step/cases.pkl", help="captured models and ops; made if not there")
    parser.add_argument("--measure", metavar="FILE", help="calibrate and measure here, and write the figures")
    parser.add_argument("--compare", metavar="FILE", help="predict what this file measured")
    parser.add_argument("--models", choices=("seen", "held-out"), default="held-out")
    parser.add_argument("--seconds", type=float, default=50.0, help="for how long steps take turns")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", default="out/step_accuracy.json", help="where --compare writes")
    args = parser.parse_args()
    if not Path(args.cases).exists():
        Path(args.cases).parent.mkdir(parents=True, exist_ok=True)
        Path(args.cases).write_bytes(pickle.dumps(collect(args.models)))
    cases = pickle.loads(Path(args.cases).read_bytes())
    if args.measure:
        from bench.step.measure import measure, write

        write(args.measure, measure(cases, args.models, args.seconds, args.device, args.measure))
    if not args.compare:
        return 0
    found = compare(cases, json.loads(Path(args.compare).read_text(encoding="utf-8")))
    Path(args.json).parent.mkdir(parents=True, exist_ok=True)
    Path(args.json).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    kinds_hold = all(kind["median_error"] <= KIND_LIMIT for kind in found["kinds"].values())
    return int(not kinds_hold or found["mean_error"] > MEAN_LIMIT or found["worst_error"] > WORST_LIMIT)


if __name__ == "__main__":
    sys.exit(main())
