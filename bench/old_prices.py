"""Plan files that an older version wrote, priced today: the step and the peak they had, those of today, and if they
still fit. A plan file has the devices and links of its day; here they are today's. Files of schema 2 are read as
`meshwright plan --upgrade` reads them.

    python bench/old_prices.py plans/*.json
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections import defaultdict
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from meshwright.capture import capture
from meshwright.capture.program import Program
from meshwright.cluster import Cluster, load_cluster
from meshwright.errors import MeshwrightError
from meshwright.models.reference import parse_reference
from meshwright.plan import Plan, Stage
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
    plain = json.loads(path.read_text())
    said = f"{plain['model']}, batch {plain['batch']}, {plain['cluster']}"
    try:
        program = capture(*parse_reference(plain["model"]).meta(plain["batch"]), precision=plain["precision"])
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(in_todays_words(plain, program), file)
            file.flush()
            plan = upgrade(file.name)
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


def in_todays_words(plain: dict[str, Any], program: Program) -> dict[str, Any]:
    """A plan file of the same model as it is captured today: a view that is left out by now has no strategy."""
    ops = {
        kind: [op.name for op in program.graph(segment).ops]
        for kind, segment in zip(plain["segments"], program.segments, strict=True)
    }
    choices = [one | {"strategies": renamed(one["strategies"], ops[kind])} for kind, one in enumerate(plain["choices"])]
    return plain | {"fingerprint": program.fingerprint(), "choices": choices}


def renamed(strategies: dict[str, str], ops: list[str]) -> dict[str, str]:
    """Strategies under today's names of the ops: those of a kind are in the order in which they were."""
    spare = defaultdict(list)
    for name, strategy in strategies.items():
        if name not in ops:
            spare[kind_of(name)].append(strategy)
    found = {}
    for name in ops:
        if name in strategies or spare[kind_of(name)]:
            found[name] = strategies[name] if name in strategies else spare[kind_of(name)].pop(0)
    return found


def kind_of(name: str) -> str:
    """The name of an op without the number that tells it from others of its kind."""
    return re.sub(r"_\d+$", "", name)


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
