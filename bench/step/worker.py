"""One model in one precision, eager or compiled, in a process of its own: planned, built, run twice; then measured
whenever it is told to.

It says `@ready`; for each line that it reads, it measures every plan and answers `@` and JSON. A peak is that of the
trainer which is measured: what the other plan's trainer keeps in the same process is taken away.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":  # the folder of this file would hide modules of the standard library
    sys.path[0] = sys.path[0].rpartition("/")[0].rpartition("/")[0]
os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

import json
import time
import traceback
import warnings
from typing import Any

import torch

from bench.step.judged import case_of
from bench.step.planned import Case, Planned, Steps, as_here, measure, synchronize
from meshwright.cluster.launch import measured_s
from meshwright.cluster.profile_load import device_of

Job = tuple[Planned, bool, Any, Steps, int]
"""The last: bytes that its trainer keeps between steps."""


def main() -> None:
    name, precision, profile, way, asked_s = sys.argv[1:6]
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    device = as_here(device_of(profile), float(asked_s))
    failed: list[dict[str, Any]] = []
    jobs: list[Job] = []
    case = case_of(name, precision, way == "compiled")
    try:
        jobs = prepared(case, device)
    except Exception:
        failed.append({"case": str(case), "error": traceback.format_exc()[-600:]})
    say("ready", {"jobs": len(jobs)})
    about = {"model": name, "precision": precision, "compiled": case.compiled}
    kept = sum(own for *_, own in jobs)
    for _ in sys.stdin:
        say("rows", failed + [about | measured(job, kept) for job in jobs])


def measured(job: Job, kept: int) -> dict[str, Any]:
    """kept: bytes of all trainers between steps."""
    planned, tight, plan, step, own = job
    row: dict[str, Any] = {"case": str(planned.case), "tight": tight}
    try:
        if planned.device.kind == "cuda":
            row["launch_s"] = measured_s(torch.device("cuda"))  # now, where the plan's was measured at the start
        row |= measure(step, 0.5, 5)
        row["peak_bytes"] -= kept - own
        guess = plan.predicted
        row |= {"predicted_s": guess.step_s, "predicted_bytes": guess.peak_bytes, "host_waits_s": guess.host_s}
    except Exception:
        row["error"] = traceback.format_exc()[-600:]
    step.park()
    return row


def prepared(case: Case, device: Any) -> list[Job]:
    """Both budgets of a case, each run twice already."""
    planned = Planned(case, device)
    found = []
    for tight in (False, True):
        plan, before = planned.plan(tight), held_bytes()
        step = Steps(planned.trainer(plan), planned.data())
        for _ in range(2):
            step()
        synchronize()
        step.park()
        found.append((planned, tight, plan, step, held_bytes() - before))
    return found


def held_bytes() -> int:
    return torch.cuda.memory_allocated() if torch.cuda.is_available() else 0


def say(kind: str, found: Any) -> None:
    print("@" + json.dumps([kind, time.time(), found]), flush=True)


if __name__ == "__main__":
    main()
