"""Do figures of frameworks hold for rows they were not fitted on? Fits them on half of a set, scores the other half.

    python bench/published_halves.py TABLE.csv [TABLE.csv ...] [--json FILE]

Rows of a set in turns, both ways round; of rows with an MFU above 0.1. Only the figures of `Framework` are fitted again
(`op_host_s`, `kernels`, over a grid): those of devices and the network, and habits, stay as they are.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import fmean

sys.path.insert(0, str(Path(__file__).parent))

from published_rows import Case, case_of
from row_tables import Refused, table_or_exit

from meshwright.configuration import predict_configuration
from meshwright.errors import MeshwrightError

KERNELS = (0.87, 0.93, 1.0, 1.06, 1.12, 1.2, 1.3, 1.4, 1.5)
HOSTS = (0.6, 0.8, 1.0, 1.25, 1.5)
"""Times the framework's own host seconds of an op, where it has a figure."""


def errors(case: Case, published_s: float) -> dict[tuple[float, float], float]:
    """By figures: how far the step is off."""
    own, found = case.habits.framework, {}
    for host, kernels in product(HOSTS if own.op_host_s else (1.0,), KERNELS):
        framework = replace(own, op_host_s=host * own.op_host_s, kernels=kernels)
        step_s = predict_configuration(case.model, case.given, case.cluster, framework).step_s
        found[host, kernels] = abs(step_s / published_s - 1.0)
    return found


def held_out(rows: list[dict[tuple[float, float], float]]) -> float:
    """Mean error of each half under the figures that are best for the other."""
    found = []
    for half in (0, 1):
        fitted, scored = rows[half::2], rows[1 - half :: 2]
        best = min(fitted[0], key=lambda figures: fmean(row[figures] for row in fitted))
        found += [row[best] for row in scored]
    return fmean(found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="+", type=Path)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    sets: dict[str, list[dict[tuple[float, float], float]]] = defaultdict(list)
    for path in args.tables:
        for row in table_or_exit(path):
            if (row.get("status") or "ok") != "ok" or not row.get("step_time_s") or float(row.get("mfu") or 1) <= 0.1:
                continue
            try:
                sets[row.get("set") or path.stem].append(errors(case_of(row), float(row["step_time_s"])))
            except (Refused, MeshwrightError):
                continue
    found = {
        name: {"rows": len(rows), "mean_abs_error": held_out(rows)} for name, rows in sets.items() if len(rows) > 1
    }
    for name, one in found.items():
        print(f"{name:<20}{one['rows']:>6}{one['mean_abs_error']:>8.1%}")
    if args.json:
        args.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
