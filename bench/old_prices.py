"""Plan files that an older version wrote, priced today: the step and the peak they had, those of today, and if they
still fit. A plan file has the devices and links of its day; here they are today's. Files of schema 2 are read as
`meshwright plan --upgrade` reads them.

    python bench/old_prices.py plans/*.json
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from meshwright.cluster import Cluster, load_cluster
from meshwright.errors import MeshwrightError
from meshwright.plan import Plan, Stage
from meshwright.plan.origin import program_of
from meshwright.predict import predict
from meshwright.price.check import check_plan
from meshwright.schedule.upgrade import upgrade

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Row:
    """why: where a plan could not be priced."""

    file: str
    request: str = ""
    old_step_s: float = 0.0
    new_step_s: float = 0.0
    old_peak_gib: float = 0.0
    new_peak_gib: float = 0.0
    limit_gib: float = 0.0
    fits: bool = False
    why: str = ""

    def __str__(self) -> str:
        if self.why:
            return f"| {self.file} | {self.request} | not priced: {self.why} | | | | |"
        change = 100 * (self.new_step_s / self.old_step_s - 1)
        steps = f"{self.old_step_s:.4g} | {self.new_step_s:.4g} ({change:+.1f} %)"
        peaks = f"{self.old_peak_gib:.2f} | {self.new_peak_gib:.2f} | {self.limit_gib:.2f}"
        return f"| {self.file} | {self.request} | {steps} | {peaks} | {'yes' if self.fits else 'no'} |"


def priced(path: Path) -> Row:
    try:
        plan = upgrade(path)
        said = f"{plan.model}, batch {plan.batch}, {plan.cluster}"
    except MeshwrightError as error:
        return Row(path.stem, why=str(error).splitlines()[0])
    try:
        program = program_of(plan, str(path))
        plan = replace(plan, fingerprint=program.fingerprint())  # of the same model, captured in today's words
        plan = replace(plan, stages=tuple(today(stage, load_cluster(plan.cluster)) for stage in plan.stages))
        check_plan(plan, program)
        found = predict(plan, program)
    except MeshwrightError as error:
        return Row(path.stem, said, why=str(error).splitlines()[0])
    limit, old = limit_bytes(plan), plan.predicted
    return Row(
        path.stem, said, old.step_s, found.step_s, old.peak_bytes / GIB, found.peak_bytes / GIB, limit / GIB,
        found.peak_bytes <= limit,
    )  # fmt: skip


def today(stage: Stage, cluster: Cluster) -> Stage:
    axes = [axis.name for axis in stage.mesh.axes]
    return replace(stage, mesh=cluster.mesh(stage.mesh.sizes, axes, stage.mesh.ranks))


def limit_bytes(plan: Plan) -> int:
    usable = min(stage.mesh.device.usable_bytes for stage in plan.stages)
    return usable if plan.memory_bytes is None else min(usable, plan.memory_bytes)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--json", type=Path, help="write the rows here")
    args = parser.parse_args()
    print("| plan | request | old step, s | today's | old peak, GiB | today's | limit | fits |\n" + "|---" * 8 + "|")
    rows = []
    for path in args.files:
        rows.append(priced(path))
        print(rows[-1], flush=True)
    if args.json:
        args.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
