"""Pipelines on networks whose rates are set: the planner's, its best plan of one stage, and torch's own pipelines.

    python bench/shaped_pipelines.py [--cases 0 3 5] [--repeats 5] [--keep FOLDER [--plan-at PACE]]
                                                                  (root, for network namespaces; see bench/shaped)

Hosts are namespaces joined by shaped links. The shipped CPU profile is first brought to the pace of this machine: one
number, from a step of another model of the same family (bench/shaped/pace.py) that all ranks run at once, in seconds of
its CPU: ranks of a pipeline wait most of the time, so that few share a core. It is taken again between the steps, and
plans are held against what they say at that pace. Links are taken at what two messages reach that cross, before the
plans are made and again around the steps. For each case (a model on a network, some with a limit on memory) the planner
is asked twice, free and with `pp=1`. Rivals:
`torch.distributed.pipelining` with the stages and micro-batches of the plan, GPipe and 1F1B, data-parallel inside a
stage where the plan has several ranks there. All ways step in turn on the same ranks, with the same fused AdamW;
repeats are interleaved and medians taken. The plan's step is held against what the simulator said, its bytes against
those counted while it runs. Writes out/shaped_pipelines.json. `--plan-at` makes those plans for a pace into a folder
that are not there yet, and `--keep` takes what is there, so that measuring can be short. bench/shaped has what a rank
does, and torch's pipelines.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "shaped"))

from pipeline_ranks import OURS, measured_main, pace_main

GPT = "gpt?layers=4&hidden=512&heads=8&ffn=2048&vocab=512&seq=64&tied=false"
DEEP = "gpt?layers=6&hidden=384&heads=8&ffn=1536&vocab=512&seq=64&tied=false"
LLAMA = "llama?layers=4&hidden=512&heads=8&kv_heads=8&ffn=1408&vocab=512&seq=64&tied=false"
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Case:
    model: str
    batch: int
    hosts: int
    ranks: int
    mbit: int
    memory_bytes: int | None = None

    def __str__(self) -> str:
        limit = f", {self.memory_bytes // MIB} MiB a rank" if self.memory_bytes else ""
        return f"{self.model}, batch {self.batch}, {self.hosts} hosts x {self.ranks}, {self.mbit} Mbit/s{limit}"

    @property
    def slow(self) -> bool:
        """Slow links: where a pipeline has to be 1.3 times as fast as any plan of one stage."""
        return self.mbit <= 100


CASES = (
    Case(GPT, 16, 2, 1, 50, 240 * MIB),
    Case(LLAMA, 16, 2, 1, 100),
    Case(GPT, 16, 2, 1, 1000),
    Case(DEEP, 16, 3, 1, 20, 160 * MIB),
    Case(GPT, 16, 4, 1, 20, 160 * MIB),
    Case(DEEP, 16, 2, 2, 100, 160 * MIB),
    Case(LLAMA, 16, 2, 2, 100, 160 * MIB),
)


def main() -> int:
    from network import Host, shaped_network, why_not

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, nargs="*", default=list(range(len(CASES))))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", default="out/shaped_pipelines.json")
    parser.add_argument("--keep", type=Path, help="folder of plans, by the numbers of their cases")
    parser.add_argument("--plan-at", type=float, help="only plan, for this pace")
    args = parser.parse_args()
    if args.keep and args.plan_at:
        for number in args.cases:
            (args.keep / str(number)).mkdir(parents=True, exist_ok=True)
            _plans(CASES[number], args.keep / str(number), args.plan_at, 1.0, {})
        return 0
    if reason := why_not():
        print(reason)
        return 0
    Path(args.out).parent.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # a time limit from outside removes the network too
    rows = []
    for number in args.cases:
        case = CASES[number]
        hosts = [Host(f"h{i}", f"{case.mbit}mbit") for i in range(case.hosts)]
        with tempfile.TemporaryDirectory() as folder, shaped_network(hosts) as network:
            kept = [] if args.keep is None else sorted((args.keep / str(number)).glob("*.plan.json"))
            for path in kept:
                shutil.copy(path, folder)

            def run(what: str, network: Any = network, case: Case = case, folder: str = folder) -> Any:
                told = json.dumps(asdict(case) | {"folder": folder, "repeats": args.repeats})
                command = [sys.executable, str(Path(__file__).resolve()), what, told]
                network.run(command, [case.ranks] * case.hosts, timeout_s=1200)
                return json.loads((Path(folder) / f"{what[2:]}.json").read_text())

            predicted = {} if len(kept) == len(OURS) else _plans(case, Path(folder), *run("--pace"))
            measured = run("--measured")
            pace = measured["pace"]
            share = measured["share"]
            predicted |= {name: _figures(_at(case, Path(folder) / f"{name}.plan.json", pace, share)) for name in OURS}
        rows.append(_row(case, pace, predicted, measured))
        Path(args.out).write_text(json.dumps(rows, indent=1) + "\n")
    good = [row for row in rows if row["good"]]
    print(f"all that is asked for holds in {len(good)} of {len(rows)} cases")
    return 0


def _plans(case: Case, folder: Path, pace: float, share: float, inside: dict[str, float]) -> dict[str, Any]:
    """Our plans, saved; what they say of themselves. pace: seconds here for one of the shipped profile's. share: of a
    link's rate, what messages reach that go both ways at once. inside: seconds of collectives inside a host."""
    from pace import shaped_cluster
    from reached import with_reached_inside

    from meshwright.capture import capture
    from meshwright.models.reference import parse_reference
    from meshwright.planner.plan import make_plan

    cluster = shaped_cluster(case.hosts, case.ranks, case.mbit * share, pace)
    if inside:
        cluster = with_reached_inside(cluster, case.hosts, case.ranks, inside)
    program = capture(*parse_reference(case.model).meta(case.batch))
    found = {}
    for name, pins in OURS.items():
        if (folder / f"{name}.plan.json").exists():
            continue
        plan = make_plan(program, cluster, model=case.model, pins=pins, memory_bytes=case.memory_bytes)
        plan.save(folder / f"{name}.plan.json")
        print(plan, flush=True)
        found[f"{name}, as planned"] = _figures(plan)
    return found


def _at(case: Case, path: Path, pace: float, share: float) -> Any:
    """A saved plan, priced again for the pace at which the machine ran it, on the cores that it has, and for what
    messages reached between hosts."""
    from network import cores_of_host
    from pace import payload_rate, plan_at_pace

    import meshwright as mw
    from meshwright.capture import capture
    from meshwright.models.reference import parse_reference

    plan = mw.Plan.load(path)
    program = capture(*parse_reference(plan.model).meta(plan.batch))
    rate = payload_rate(case.mbit)
    links = (replace(one, bandwidth=rate * share) if one.bandwidth <= 1.001 * rate else one for one in plan.links)
    plan = replace(plan, links=tuple(links))
    has_many_alive = plan.world_size > len(os.sched_getaffinity(0))
    return plan_at_pace(
        plan, program, pace, (lambda rank: cores_of_host(rank // case.ranks, case.hosts)) if has_many_alive else None
    )


def _figures(plan: Any) -> dict[str, Any]:
    said, stages = plan.predicted, plan.predicted.stages
    every = range(plan.world_size)
    peaks = [stages[plan.stage_at(rank)].peak_bytes if stages else said.peak_bytes for rank in every]
    return {"step_s": said.step_s, "peak_bytes": peaks}


def _row(case: Case, pace: float, predicted: dict[str, Any], measured: dict[str, Any]) -> dict[str, Any]:
    seconds = measured["seconds"]
    torchs = [name for name in seconds if name not in OURS]
    best = min(torchs, key=seconds.__getitem__, default=None)
    row: dict[str, Any] = asdict(case) | {"predicted": predicted, "measured": measured}
    row["pace"] = pace
    row["over_one_stage"] = seconds["one stage"] / seconds["plan"]
    row["over_torch"] = None if best is None else seconds[best] / seconds["plan"]
    row["time_error"] = predicted["plan"]["step_s"] / seconds["plan"] - 1
    pairs = zip(predicted["plan"]["peak_bytes"], measured["peak_bytes"], strict=True)
    row["bytes_error"] = max((said / counted - 1 for said, counted in pairs), key=abs)
    row["good"] = (
        row["over_one_stage"] >= (1.3 if case.slow else 1.0)
        and (best is None or row["over_torch"] >= 1.0)
        and abs(row["time_error"]) <= 0.15
        and abs(row["bytes_error"]) <= 0.05
    )
    print(f"{case} (pace {pace:.2f})")
    for name, spent in sorted(seconds.items(), key=lambda item: item[1]):
        told = f"  predicted {predicted[name]['step_s']:.3f} s" if name in predicted else ""
        print(f"   {name:<22} {spent:.3f} s, {measured['cpu_s'][name]:.3f} CPU s of all ranks{told}")
    rival = "no rival of torch's" if best is None else f"{row['over_torch']:.2f}x of {best}"
    print(
        f"   {row['over_one_stage']:.2f}x of one stage, {rival}; step {row['time_error']:+.1%}, "
        f"bytes {row['bytes_error']:+.1%} of measured{'' if row['good'] else '  MISSED'}",
        flush=True,
    )
    return row


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for what, ranks_do in (("--pace", pace_main), ("--measured", measured_main)):
        if sys.argv[1:2] == [what]:
            sys.exit(ranks_do(json.loads(sys.argv[2])))
    sys.exit(main())
