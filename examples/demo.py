"""Plan a small GPT for two local processes, show the plan and its rivals, train it, and compare with one process."""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path

from meshwright.capture import capture
from meshwright.cluster import load_cluster
from meshwright.models.reference import parse_reference
from meshwright.plan.describe import describe
from meshwright.runtime.launch import launch
from meshwright.runtime.worker import Job
from meshwright.solve.baselines import baselines
from meshwright.solve.command import alternatives
from meshwright.solve.plan import make_plan

MODEL = "gpt?layers=2&hidden=128&heads=4&ffn=512&vocab=128&seq=64"
BATCH, STEPS = 16, 40


def main() -> None:
    start_s = time.perf_counter()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    reference = parse_reference(MODEL)
    print("1. capture: the model becomes a Program of segments; nothing of its size is allocated")
    program = capture(*reference.meta(BATCH))
    for segment in program.segments:
        print(f"   {segment.name:<10} {len(program.graph(segment).ops):>3} ops, {len(segment.params):>2} parameters")

    print("\n2. plan: every operator's sharding chosen together, on two processes of this machine")
    plan = make_plan(program, load_cluster("local:2"), model=MODEL)
    print(describe(plan))
    print(alternatives(plan, baselines(program, load_cluster("local:2"))))

    losses = {}
    with tempfile.TemporaryDirectory() as folder:
        for processes in (2, 1):
            plural = "es" if processes > 1 else ""
            print(f"\n{5 - processes}. train: {STEPS} steps on {processes} process{plural}, one thread each")
            its_plan = plan if processes == 2 else make_plan(program, load_cluster("local:1"), model=MODEL)
            losses[processes] = _train(its_plan, Path(folder), processes)

    worst = max(abs(a - b) / abs(b) for a, b in zip(losses[2], losses[1], strict=True))
    print(f"\n5. compare: loss {losses[2][0]:.4f} -> {losses[2][-1]:.4f} on two processes;")
    print(f"   the losses of the two runs differ by at most {worst:.1e}, relative, at any of the {STEPS} steps")
    if losses[2][-1] > losses[2][0] - 0.5 or worst > 1e-3:
        raise SystemExit("the demo did not show what it should: see the losses above")
    print("   (the predicted times come from the preset `local`; `meshwright cluster detect` measures a machine)")
    print(f"done in {time.perf_counter() - start_s:.0f} s")


def _train(plan: object, folder: Path, processes: int) -> list[float]:
    saved, result = folder / f"plan{processes}.json", folder / f"losses{processes}.json"
    plan.save(saved)  # type: ignore[attr-defined]
    launch("meshwright.runtime.worker", Job(str(saved), STEPS, 3e-3, 0, str(result)).arguments(), processes)
    found: list[float] = json.loads(result.read_text())
    return found


if __name__ == "__main__":
    main()
