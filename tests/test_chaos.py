"""A few of the seeded faults of `bench/chaos.py` on real jobs: no hang, no orphan, no lost step, no wrong loss."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

CHAOS = Path(__file__).parents[1] / "bench" / "chaos.py"


@pytest.mark.full
@pytest.mark.parametrize(("numbers", "elsewhere"), [("0,1,3", "0"), ("2,5,7", None), ("8", None)])
def test_seeded_faults(numbers: str, elsewhere: str | None, tmp_path: Path) -> None:
    out = tmp_path / "chaos.json"
    command = [sys.executable, str(CHAOS), "--no-namespaces", "--only", numbers, "--jobs", "2", "-o", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    found = json.loads(out.read_text())
    assert {str(run["number"]) for run in found} == set(numbers.split(",")) - {elsewhere}
    assert elsewhere is None or f"1 runs not done (not possible here): --only {elsewhere}\n" in done.stdout
    assert all(run["reached"] and not run["faults"] for run in found)
