"""Is the planned run the fastest? Steps on networks whose rates are set: the plan, our own hand-made plans, and rivals.

    python bench/shaped_plans.py [--cases 0 3 6] [--repeats 3]          (root, for network namespaces; see bench/shaped)

Hosts are namespaces joined by shaped links. The CPU profile is brought to the pace of this machine first
(bench/shaped/pace.py). For each case (a model on a network) the plan is made for the rates that collectives were seen
to reach there (bench/shaped/reached.py), then all ways of running it step on the same ranks. Rivals: torch DDP, FSDP2
by layer and DTensor tensor parallelism as its tutorial writes it, each over micro-batches and bucket sizes
(bench/shaped/rivals.py): a step of each setting, the best of each
kind goes on. Then repeats are interleaved and medians taken. Told: the plan against the best rival; predicted against
measured seconds of all our plans, at the pace that was seen between the steps for about as many samples at a time;
whether they stand in the same order.
Writes out/shaped_plans.json.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "shaped"))

OURS = {"plan": None, "our DDP": ("zero=0",), "our ZeRO-3": ("zero=3",), "our TP": ()}
SMALL = "gpt?layers=4&hidden=256&heads=8&ffn=1024&vocab=512&seq=64"
WIDE = "gpt?layers=2&hidden=512&heads=8&ffn=2048&vocab=512&seq=32"
LONG = "gpt?layers=4&hidden=192&heads=4&ffn=768&vocab=512&seq=128"
BATCH = 16


@dataclass(frozen=True, slots=True)
class Case:
    model: str
    hosts: int
    ranks: int
    mbit: int

    def __str__(self) -> str:
        return f"{self.model}, batch {BATCH}, {self.hosts} hosts x {self.ranks}, {self.mbit} Mbit/s"

    @property
    def slow(self) -> bool:
        """Slow links between hosts: where the plan has to be 1.15 times as fast as the best rival."""
        return self.mbit <= 100


CASES = (
    *(Case(model, 2, 1, mbit) for mbit in (50, 200, 500) for model in (SMALL, WIDE, LONG)),
    *(Case(model, 2, 2, 50) for model in (SMALL, LONG)),
    *(Case(model, 4, 1, 100) for model in (SMALL, LONG)),
)


def main() -> int:
    from network import Host, shaped_network, why_not

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, nargs="+", default=list(range(len(CASES))))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", default="out/shaped_plans.json")
    args = parser.parse_args()
    if reason := why_not():
        print(reason)
        return 0
    Path(args.out).parent.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # a time limit from outside removes the network too
    rows = []
    for case in (CASES[number] for number in args.cases):
        hosts = [Host(f"h{i}", f"{case.mbit}mbit") for i in range(case.hosts)]
        with tempfile.TemporaryDirectory() as folder, shaped_network(hosts) as network:

            def run(what: str, network: Any = network, case: Case = case, folder: str = folder) -> Any:
                told = json.dumps(asdict(case) | {"folder": folder, "repeats": args.repeats})
                command = [sys.executable, str(Path(__file__).resolve()), what, told]
                network.run(command, [case.ranks] * case.hosts, timeout_s=1200)
                return json.loads((Path(folder) / f"{what[2:]}.json").read_text())

            plans = _plans(case, Path(folder), **run("--pace"))
            measured = run("--measured")
            rows.append(_row(case, plans, measured))
        Path(args.out).write_text(json.dumps(rows, indent=1) + "\n")
    _summary(rows)
    return 0


def _plans(
    case: Case, folder: Path, pace: float, seconds: dict[str, float], inside: dict[str, float]
) -> dict[str, Any]:
    """Our plans, saved. pace: seconds here for one of the shipped profile's; seconds: of collectives, as seen, over all
    ranks and inside a host."""
    from pace import shaped_cluster
    from reached import with_reached, with_reached_inside

    from meshwright.errors import PlanError
    from meshwright.planner.plan import make_plan

    world = case.hosts * case.ranks
    cluster = shaped_cluster(case.hosts, case.ranks, case.mbit, pace)
    if inside:
        cluster = with_reached_inside(cluster, case.hosts, case.ranks, inside)
    cluster = with_reached(cluster, world, seconds)
    found = {}
    for name, pins in OURS.items():
        wanted = () if pins is None else (f"tp={world}",) if name == "our TP" else (f"dp={world}", *pins)
        try:
            found[name] = make_plan(_program(case), cluster, model=case.model, pins=wanted)
        except PlanError:
            continue
        found[name].save(folder / f"{name}.plan.json")
    return found


def _program(case: Case) -> Any:
    from meshwright.capture import capture
    from meshwright.models.reference import parse_reference

    return capture(*parse_reference(case.model).meta(BATCH))


def _row(case: Case, plans: dict[str, Any], measured: dict[str, Any]) -> dict[str, Any]:
    from pace import pace_of, plan_at_pace

    seconds, program, paces = measured["seconds"], _program(case), measured["pace"]
    predicted = {
        name: plan_at_pace(plan, program, pace_of(plan, paces)).predicted.step_s for name, plan in plans.items()
    }
    rivals = {name: spent for name, spent in seconds.items() if name not in OURS}
    best = min(rivals, key=rivals.__getitem__)
    ratio, wanted = rivals[best] / seconds["plan"], 1.15 if case.slow else 0.97
    fastest = min(seconds.values()) / seconds["plan"]
    error = predicted["plan"] / seconds["plan"] - 1
    good = ratio >= wanted and fastest >= 0.97 and abs(error) <= 0.2
    stages = ", then ".join("x".join(f"{a.name}{a.size}" for a in stage.mesh.axes) for stage in plans["plan"].stages)
    print(f"{case} (pace {paces['large']:.2f}, of few samples {paces['small']:.2f})")
    print(f"   planned: {stages}; {plans['plan'].microbatches} micro-batches")
    for name, spent in sorted(seconds.items(), key=lambda item: item[1]):
        told = f"  predicted {predicted[name]:.3f} s" if name in predicted else ""
        print(f"   {name:<34} {spent:.3f} s{told}")
    print(f"   {ratio:.2f}x of {best}; predicted {error:+.1%}{'' if good else '  MISSED'}", flush=True)
    return asdict(case) | {
        "planned": stages, "predicted": predicted, "measured": measured, "ratio": ratio, "fastest": fastest,
        "error": error, "good": good,
    }  # fmt: skip


def _summary(rows: list[dict[str, Any]]) -> None:
    pairs = [(row["predicted"][name], row["measured"]["seconds"][name]) for row in rows for name in row["predicted"]]
    order = _spearman([a for a, _ in pairs], [b for _, b in pairs])
    within = sum(abs(a / b - 1) <= 0.2 for a, b in pairs)
    print(f"all that is asked of the plan holds in {sum(row['good'] for row in rows)} of {len(rows)} cases")
    print(f"order of all {len(pairs)} plans: Spearman {order:.3f}; {within} of them predicted within 20 %")


def _spearman(first: list[float], second: list[float]) -> float:
    def ranks(values: list[float]) -> list[int]:
        return [sorted(values).index(value) for value in values]

    n = len(first)
    return 1 - 6 * sum((a - b) ** 2 for a, b in zip(ranks(first), ranks(second), strict=True)) / (n * (n * n - 1))


def pace_main(told: dict[str, Any]) -> int:
    import torch
    import torch.distributed as dist
    from pace import yardsticks
    from reached import reached, reached_inside

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    paces, seconds = yardsticks(told["model"]), reached()
    paces(2)
    dist.barrier()
    found = _medians([paces(8)])
    inside = reached_inside(told["hosts"], told["ranks"]) if told["ranks"] > 1 else {}
    _tell(told, "pace", {"pace": sum(found.values()) / 2, "seconds": seconds, "inside": inside})
    return 0


def _medians(own: list[dict[str, float]]) -> dict[str, float]:
    """Of paces, over times and ranks; the same on all."""
    import torch.distributed as dist

    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, {name: median(one[name] for one in own) for name in own[0]})
    return {name: median(one[name] for one in every) for name in own[0]}


def rank_main(told: dict[str, Any]) -> int:
    import torch
    import torch.distributed as dist
    from pace import yardsticks
    from rivals import rivals

    from meshwright.models.reference import parse_reference

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    reference = parse_reference(told["model"])
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    whole = {name: torch.randint(0, 256, shape) for name, (shape, _) in reference.shapes(BATCH).items()}

    def build() -> Any:
        torch.manual_seed(1)
        return reference.build()

    steps = _our_steps(build, told, whole)
    best: dict[str, tuple[float, str]] = {}
    for name, step in rivals(build, whole, rank, world):
        step()
        kind, spent = name.split(",")[0].removesuffix(" kept"), _timed(step)
        if kind not in best or spent < best[kind][0]:
            steps.pop(best[kind][1] if kind in best else "", None)
            best[kind], steps[name] = (spent, name), step
    pace, paces = yardsticks(told["model"]), []
    pace(1)
    for name in OURS:
        if name in steps:
            steps[name]()
    timed: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(told["repeats"]):
        dist.barrier()
        paces.append(pace(6))
        for name, step in steps.items():
            timed[name].append(_timed(step))
    seconds = {name: median(values) for name, values in timed.items()}
    _tell(told, "measured", {"seconds": seconds, "all": timed, "pace": _medians(paces)})
    return 0


def _timed(step: Callable[[], Any]) -> float:
    """The slowest rank's seconds; the same on all."""
    import torch
    import torch.distributed as dist

    dist.barrier()
    start = time.perf_counter()
    step()
    spent = torch.tensor(time.perf_counter() - start)
    dist.all_reduce(spent, dist.ReduceOp.MAX)
    return spent.item()


def _our_steps(build: Callable[[], Any], told: dict[str, Any], whole: dict[str, Any]) -> dict[str, Callable[[], Any]]:
    import torch

    import meshwright as mw

    steps: dict[str, Callable[[], Any]] = {}
    for name in OURS:
        file = Path(told["folder"]) / f"{name}.plan.json"
        if not file.exists():
            continue
        trainer = mw.parallelize(build(), mw.Plan.load(file))
        optimizer = torch.optim.AdamW(trainer.parameters(), lr=1e-4, fused=True)

        def step(trainer: Any = trainer, optimizer: Any = optimizer) -> float:
            loss: float = trainer.step(whole, global_batch=True).item()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        steps[name] = step
    return steps


def _tell(told: dict[str, Any], name: str, found: Any) -> None:
    import torch.distributed as dist

    if dist.get_rank() == 0:
        (Path(told["folder"]) / f"{name}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    modes = {"--pace": pace_main, "--measured": rank_main}
    if sys.argv[1:2] and sys.argv[1] in modes:
        sys.exit(modes[sys.argv[1]](json.loads(sys.argv[2])))
    sys.exit(main())
