"""One model in one precision, in a process of its own: planned, built and compiled; then measured when told to.

It says `@ready`, waits for a line, measures every plan and answers `@` and JSON. Steps run under a lock that all
processes share, so that no more than one of them holds activations at a time.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":  # the folder of this file would hide modules of the standard library
    sys.path[0] = sys.path[0].rpartition("/")[0].rpartition("/")[0]
os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

import fcntl
import json
import time
import traceback
import warnings
from typing import Any

import torch

from bench.step.judged import cases
from bench.step.planned import Case, Planned, Steps, measure, settle, with_own_memory
from meshwright.cluster.profile_load import device_of

Job = tuple[Planned, bool, Any, Steps]


def main() -> None:
    name, precision, profile, wanted, lock = sys.argv[1:6]
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    device = with_own_memory(device_of(profile))
    rows: list[dict[str, Any]] = []
    jobs: list[Job] = []
    with open(lock, "w") as held:
        for case in cases(name, precision, "eager" in wanted, "compiled" in wanted):
            try:
                jobs += prepared(case, device, held)
            except Exception:
                rows.append({"case": str(case), "error": traceback.format_exc()[-600:]})
    say("ready", {"jobs": len(jobs)})
    sys.stdin.readline()
    for planned, tight, plan, step in jobs:
        row: dict[str, Any] = {"model": name, "case": str(planned.case), "precision": precision}
        row |= {"compiled": planned.case.compiled, "tight": tight}
        try:
            row |= measure(step, 0.5, 5)
            guess = plan.predicted
            row |= {"predicted_s": guess.step_s, "predicted_bytes": guess.peak_bytes, "host_waits_s": guess.host_s}
        except Exception:
            row["error"] = traceback.format_exc()[-600:]
        step.park()
        rows.append(row)
    say("rows", rows)


def prepared(case: Case, device: Any, held: Any) -> list[Job]:
    """Both budgets of a case, each run twice already; a compiled one in fp32 with all memory alone."""
    planned = Planned(case, device)
    found = []
    for tight in (False, True) if not case.compiled or case.precision == "bf16" else (False,):
        plan = planned.plan(tight)
        step = Steps(planned.trainer(plan), planned.data())
        fcntl.flock(held, fcntl.LOCK_EX)
        try:
            for _ in range(2):
                step()
            settle()
            step.park()
        finally:
            fcntl.flock(held, fcntl.LOCK_UN)
        found.append((planned, tight, plan, step))
    return found


def say(kind: str, found: Any) -> None:
    print("@" + json.dumps([kind, time.time(), found]), flush=True)


if __name__ == "__main__":
    main()
