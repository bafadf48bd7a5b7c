"""Are priced collectives what they cost? Runs each on a shaped network and compares with `collective_s`.

    python bench/shaped/collectives.py [--json out.json]      (root; meshwright installed, or PYTHONPATH=.)

Hosts x ranks as a mesh ("x" across hosts, "y" within). The cluster given to the price is the truth that was set
(the network's rates less what Ethernet, IP and TCP headers take); nothing is fitted. Measured: all groups of the axis
at the same time, so that contention for a host's link is in it; the best of three. The axis within a host is left
out: its rate is this machine's memory, which nobody set. The rival is the price without contention.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from network import Host, shaped_network, why_not

from meshwright.cluster import Cluster, Group, Link, Member, collective_s, load_cluster

_PAYLOAD = 1448 / 1514  # of each Ethernet frame, TCP carries this part
_KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
_LIMIT = 0.25


@dataclass(frozen=True, slots=True)
class Case:
    hosts: int
    ranks: int
    mbit: int
    n_bytes: int


CASES = (Case(2, 2, 200, 4 << 20), Case(4, 1, 200, 4 << 20), Case(3, 2, 120, 3 << 20))


def truth(case: Case) -> Cluster:
    local = load_cluster(f"local:{case.ranks}")
    network = Link(2e-4, case.mbit * 1e6 / 8 * _PAYLOAD)
    return replace(local, name="shaped", root=Group("pod", network, (Member(local.root, case.hosts),)))


def rank_main(hosts: int, ranks: int, n_bytes: int, out: str) -> None:
    """One rank: time every collective along "x" and along both axes; rank 0 writes the slowest rank's best."""
    import torch
    import torch.distributed as dist

    from meshwright.layout import collectives as ops
    from meshwright.layout.transport import ProcessTransport, use_transport

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    transport = ProcessTransport.from_ranks(torch.arange(hosts * ranks).reshape(hosts, ranks), ("x", "y"))
    found = {}
    with use_transport(transport):
        for axis, size in (("x", hosts), ("x*y", hosts * ranks)):
            x = torch.zeros(n_bytes // 4 // size * size)
            calls = {
                "all_reduce": lambda x=x, axis=axis: ops.all_reduce(x, axis),
                "all_gather": lambda x=x, axis=axis, size=size: ops.all_gather(x[: len(x) // size], 0, axis, size),
                "reduce_scatter": lambda x=x, axis=axis, size=size: ops.reduce_scatter(x, 0, axis, size),
                "all_to_all": lambda x=x, axis=axis, size=size: ops.all_to_all(x, 0, 0, axis, size),
            }
            for kind, call in calls.items():
                found[f"{axis} {kind}"] = _timed(call)
    if dist.get_rank() == 0:
        Path(out).write_text(json.dumps(found))
    dist.destroy_process_group()


def _timed(call: object) -> float:
    import torch
    import torch.distributed as dist

    assert callable(call)
    times = []
    for _ in range(3):
        dist.barrier()
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    slowest = torch.tensor(times)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return float(slowest.min())


def measure(case: Case) -> dict[str, float]:
    hosts = [Host(f"h{i}", f"{case.mbit}mbit") for i in range(case.hosts)]
    with tempfile.TemporaryDirectory() as folder, shaped_network(hosts) as network:
        out = Path(folder) / "times.json"
        arguments = ["--rank", str(case.hosts), str(case.ranks), str(case.n_bytes), str(out)]
        network.run([sys.executable, __file__, *arguments], [case.ranks] * case.hosts, timeout_s=180)
        found: dict[str, float] = json.loads(out.read_text())
        return found


def judge(case: Case) -> list[dict[str, object]]:
    mesh = truth(case).mesh((case.hosts, case.ranks), ("x", "y"))
    alone = truth(case).mesh((case.hosts,), ("x",), ranks=range(0, case.hosts * case.ranks, case.ranks)).axis("x")
    print(f"\n{case.hosts} hosts x {case.ranks} ranks, {case.mbit} Mbit/s, {case.n_bytes >> 20} MiB")
    rows = []
    for name, seconds in measure(case).items():
        axis, kind = name.split(" ")
        priced = collective_s(kind, case.n_bytes, mesh.axis(axis))
        rival = collective_s(kind, case.n_bytes, alone) if axis == "x" else priced
        error = priced / seconds - 1
        print(f"  {axis:4}{kind:15} measured {seconds * 1e3:7.0f} ms  priced {priced * 1e3:7.0f} ms  {error:+5.0%}")
        rows.append({"case": str(case), "what": name, "error": error, "rival": rival / seconds - 1})
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--rank", nargs=4, default=None, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank and "RANK" in os.environ:
        hosts, ranks, n_bytes, out = args.rank
        rank_main(int(hosts), int(ranks), int(n_bytes), out)
        return 0
    if (reason := why_not()) is not None:
        print(f"not run, and not passed: {reason}")
        return 2
    rows = [row for case in CASES for row in judge(case)]
    errors = [abs(float(str(row["error"]))) for row in rows]
    rivals = [abs(float(str(row["rival"]))) for row in rows]
    print(f"\nmedian error {median(errors):.0%}, worst {max(errors):.0%}", end="; ")
    print(f"without contention: median {median(rivals):.0%}, worst {max(rivals):.0%}")
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))
    return 0 if median(errors) <= _LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
