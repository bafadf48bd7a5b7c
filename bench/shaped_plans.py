"""Is the planned run the fastest? Steps on networks whose rates are set: the plan, our own hand-made plans, and rivals.

    python bench/shaped_plans.py [--cases 8] [--repeats 3]          (root, for network namespaces; see bench/shaped)

Hosts are namespaces joined by shaped links. For each case (a model on a network) the plan is made for the true rates,
then all ways of running it step in turn on the same ranks; repeats are interleaved and medians taken. Rivals: torch DDP
(bucket sizes tried), FSDP2 by layer, DTensor tensor parallelism as its tutorial writes it. Also told: whether predicted
and measured times of our plans stand in the same order. Writes out/shaped_plans.json.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "shaped"))

_PAYLOAD = 1448 / 1514  # of each Ethernet frame, TCP carries this part
OURS = {"plan": None, "our DDP": ("zero=0",), "our ZeRO-3": ("zero=3",), "our TP": ()}
SMALL = "gpt?layers=2&hidden=128&heads=4&ffn=512&vocab=256&seq=32"
WIDE = "gpt?layers=2&hidden=256&heads=4&ffn=1024&vocab=256&seq=16"
DEEP = "gpt?layers=4&hidden=128&heads=4&ffn=512&vocab=256&seq=32"


@dataclass(frozen=True, slots=True)
class Case:
    model: str
    batch: int
    hosts: int
    ranks: int
    mbit: int

    def __str__(self) -> str:
        return f"{self.model}, batch {self.batch}, {self.hosts} hosts x {self.ranks}, {self.mbit} Mbit/s"


CASES = tuple(
    Case(model, batch, hosts, ranks, mbit)
    for hosts, ranks, mbit in ((2, 2, 50), (2, 2, 200), (4, 1, 100))
    for model, batch in ((SMALL, 16), (WIDE, 8), (DEEP, 16))
)


def main() -> int:
    from network import Host, shaped_network, why_not

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=len(CASES))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", default="out/shaped_plans.json")
    args = parser.parse_args()
    if reason := why_not():
        print(reason)
        return 0
    Path(args.out).parent.mkdir(parents=True, exist_ok=True)
    rows = []
    for case in CASES[: args.cases]:
        with tempfile.TemporaryDirectory() as folder:
            predicted = _plans(case, Path(folder))
            told = json.dumps(asdict(case) | {"folder": folder, "repeats": args.repeats})
            hosts = [Host(f"h{i}", f"{case.mbit}mbit") for i in range(case.hosts)]
            with shaped_network(hosts) as network:
                command = [sys.executable, str(Path(__file__).resolve()), "--rank", told]
                network.run(command, [case.ranks] * case.hosts, timeout_s=1200)
            measured = json.loads((Path(folder) / "measured.json").read_text())
        rows.append(_row(case, predicted, measured))
        Path(args.out).write_text(json.dumps(rows, indent=1) + "\n")
    good = [row for row in rows if row["ratio"] >= 0.97]
    print(f"the plan is the fastest, or within 3 % of it, in {len(good)} of {len(rows)} cases")
    return 0


def _row(case: Case, predicted: dict[str, float], measured: dict[str, float]) -> dict[str, Any]:
    rivals = {name: seconds for name, seconds in measured.items() if name not in OURS}
    best = min(rivals, key=rivals.__getitem__)
    ratio = rivals[best] / measured["plan"]
    order = _spearman([predicted[name] for name in predicted], [measured[name] for name in predicted])
    print(f"{case}")
    for name, seconds in sorted(measured.items(), key=lambda item: item[1]):
        told = f"  predicted {predicted[name]:.3f} s" if name in predicted else ""
        print(f"   {name:<22} {seconds:.3f} s{told}")
    print(f"   against {best}: {ratio:.2f}x; order of our plans: {order:.2f}", flush=True)
    return asdict(case) | {"predicted": predicted, "measured": measured, "ratio": ratio, "spearman": order}


def _spearman(first: list[float], second: list[float]) -> float:
    def ranks(values: list[float]) -> list[int]:
        return [sorted(values).index(value) for value in values]

    n = len(first)
    return 1 - 6 * sum((a - b) ** 2 for a, b in zip(ranks(first), ranks(second), strict=True)) / (n * (n * n - 1))


def _plans(case: Case, folder: Path) -> dict[str, float]:
    """Our plans, saved; their predicted seconds."""
    from meshwright.capture import capture
    from meshwright.cluster import Group, Link, Member, load_cluster
    from meshwright.errors import PlanError
    from meshwright.models.reference import parse_reference
    from meshwright.solve.plan import make_plan

    local = load_cluster(f"local:{case.ranks}")
    network = Link(2e-4, case.mbit * 1e6 / 8 * _PAYLOAD)
    cluster = replace(local, name="shaped", root=Group("pod", network, (Member(local.root, case.hosts),)))
    program = capture(*parse_reference(case.model).meta(case.batch))
    world = case.hosts * case.ranks
    found = {}
    for name, pins in OURS.items():
        wanted = () if pins is None else (f"tp={world}",) if name == "our TP" else (f"dp={world}", *pins)
        try:
            plan = make_plan(program, cluster, model=case.model, pins=wanted)
        except PlanError:
            continue
        plan.save(folder / f"{name}.plan.json")
        found[name] = plan.predicted.step_s
    return found


def rank_main(told: dict[str, Any]) -> int:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    steps = _steps(told)
    for step in steps.values():
        step()
    timed: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(told["repeats"]):
        for name, step in steps.items():
            dist.barrier()
            start = time.perf_counter()
            step()
            spent = torch.tensor(time.perf_counter() - start)
            dist.all_reduce(spent, dist.ReduceOp.MAX)
            timed[name].append(spent.item())
    if dist.get_rank() == 0:
        found = {name: median(values) for name, values in timed.items()}
        (Path(told["folder"]) / "measured.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()
    return 0


def _steps(told: dict[str, Any]) -> dict[str, Callable[[], None]]:
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    import meshwright as mw
    from meshwright.models.reference import parse_reference

    reference = parse_reference(told["model"])
    rank, world, batch = dist.get_rank(), dist.get_world_size(), told["batch"]
    torch.manual_seed(0)
    whole = {name: torch.randint(0, 256, shape) for name, (shape, _) in reference.shapes(batch).items()}
    part = {name: tensor[rank * batch // world : (rank + 1) * batch // world] for name, tensor in whole.items()}
    steps: dict[str, Callable[[], None]] = {}
    for name in OURS:
        file = Path(told["folder"]) / f"{name}.plan.json"
        if file.exists():
            trainer = mw.parallelize(reference.build(), mw.Plan.load(file))
            steps[name] = _step(trainer.parameters(), lambda trainer=trainer: trainer.step(whole, global_batch=True))
    for bucket_mb in (1, 25):
        model = DistributedDataParallel(reference.build(), bucket_cap_mb=bucket_mb)
        steps[f"torch DDP, {bucket_mb} MB"] = _step(model.parameters(), lambda model=model: model(**part).backward())
    sharded = reference.build()
    for layer in sharded.layers:
        fully_shard(layer)
    fully_shard(sharded)
    steps["FSDP2"] = _step(sharded.parameters(), lambda: sharded(**part).backward())
    split = _tensor_parallel(reference.build(), world)
    steps["DTensor TP"] = _step(split.parameters(), lambda: split(**whole).backward())
    return steps


def _step(parameters: Any, run: Callable[[], Any]) -> Callable[[], None]:
    import torch

    optimizer = torch.optim.AdamW(parameters, lr=1e-4)

    def step() -> None:
        run()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _tensor_parallel(model: Any, world: int) -> Any:
    """Column then row in every block, as the tutorial of `parallelize_module` does it."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (world,))
    for layer in model.layers:
        plan: dict[str, Any] = {f"attention.{name}": ColwiseParallel() for name in ("query", "key", "value")}
        plan |= {"attention.out": RowwiseParallel(), "up": ColwiseParallel(), "down": RowwiseParallel()}
        parallelize_module(layer, mesh, plan)
        layer.attention.forward = _local_heads(layer.attention, layer.attention.heads // world)
    return model


def _local_heads(attention: Any, heads: int) -> Callable[[Any], Any]:
    import torch.nn.functional as F

    def forward(x: Any) -> Any:
        batch, seq, _ = x.shape
        query, key, value = (
            layer(x).view(batch, seq, heads, -1).transpose(1, 2)
            for layer in (attention.query, attention.key, attention.value)
        )
        y = F.scaled_dot_product_attention(query, key, value, is_causal=attention.causal)
        return attention.out(y.transpose(1, 2).reshape(batch, seq, -1))

    return forward


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if sys.argv[1:2] == ["--rank"]:
        sys.exit(rank_main(json.loads(sys.argv[2])))
    sys.exit(main())
