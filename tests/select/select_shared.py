"""Where the contest's instances are, for tests that need them; they are skipped, saying so, where there are none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONTEST = Path(os.environ.get("MESHWRIGHT_SHARED", ROOT.parent / "shared")) / "iopddl"

needs_contest = pytest.mark.skipif(not CONTEST.is_dir(), reason=f"needs the contest's instances in {CONTEST}")
