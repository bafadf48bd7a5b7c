"""A few of the seeded faults of `bench/chaos.py` on real jobs: no hang, no orphan, no lost step, no wrong loss."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "bench" / "shaped"))
from network import why_not

CHAOS = Path(__file__).parents[1] / "bench" / "chaos.py"


@pytest.mark.full
def test_a_slice(tmp_path: Path) -> None:
    """Of two hosts one loses its rank; then a file of the last checkpoint is damaged."""
    found, _ = chaos(tmp_path, "--no-namespaces", "--only", "164")
    assert [run["fault"] for run in found] == ["kill a rank"]


@pytest.mark.full
@pytest.mark.parametrize(("numbers", "elsewhere"), [("0,1,3", "0"), ("2,5,7", None), ("8", None)])
def test_seeded_faults(numbers: str, elsewhere: str | None, tmp_path: Path) -> None:
    found, said = chaos(tmp_path, "--no-namespaces", "--only", numbers, "--jobs", "2")
    assert {str(run["number"]) for run in found} == set(numbers.split(",")) - {elsewhere}
    assert elsewhere is None or f"1 runs not done (not possible here): --only {elsewhere}\n" in said


@pytest.mark.full
@pytest.mark.skipif(why_not() is not None, reason=f"not run, so not passed: {why_not()}")
def test_links_that_are_cut_restored_and_slowed(tmp_path: Path) -> None:
    found, _ = chaos(tmp_path, "--only", "84,180,197")
    assert [run["fault"] for run in found] == ["cut the link", "cut and restore the link", "slow the link"]


def chaos(folder: Path, *words: str) -> tuple[list[dict[str, Any]], str]:
    """Its runs, all of them disturbed and without a fault, and what it said."""
    out = folder / "chaos.json"
    command = [sys.executable, str(CHAOS), *words, "-o", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    found = json.loads(out.read_text())
    assert all(run["reached"] and not run["faults"] for run in found)
    return found, done.stdout
