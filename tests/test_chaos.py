"""A few of the seeded faults of `bench/chaos.py` on real jobs: no hang, no orphan, no lost step, no wrong loss."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

CHAOS = Path(__file__).parents[1] / "bench" / "chaos.py"


@pytest.mark.full
@pytest.mark.parametrize("numbers", ["0,1", "2,3,4", "5"])
def test_seeded_faults(numbers: str, tmp_path: Path) -> None:
    out = tmp_path / "chaos.json"
    command = [sys.executable, str(CHAOS), "--no-namespaces", "--only", numbers, "--jobs", "2", "-o", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    found = json.loads(out.read_text())
    assert len(found) == len(numbers.split(","))
    assert all(run["reached"] and not run["faults"] for run in found)
