"""Does `detect` recover a network whose truth we set? Prints each figure against the truth, and writes JSON.

    python bench/shaped/detect.py [--only NAME ...] [--json out.json]      (meshwright installed, or PYTHONPATH=.)

Passes when, in every scenario, the level structure is exact and each set rate is found within 15 %.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from network import Host, shaped_network, why_not

from meshwright.cluster import Cluster, Group, load_cluster

_MBIT = 1e6 / 8
_LIMIT = 0.15


@dataclass(frozen=True, slots=True)
class Scenario:
    """Hosts as (Mbit/s, rack), ranks on each, and what detection must find: levels and hosts' rates in order."""

    name: str
    hosts: tuple[tuple[int, str | None], ...]
    ranks: tuple[int, ...]
    levels: tuple[str, ...]
    rack_mbit: int | None = None


SCENARIOS = (
    Scenario("uniform", ((200, None),) * 4, (1,) * 4, ("host", "pod")),
    Scenario("fast pairs", ((100, None),) * 3, (2,) * 3, ("host", "pod")),
    Scenario("three levels", ((240, "a"), (240, "a"), (240, "b"), (240, "b")), (2,) * 4, ("host", "rack", "pod"), 80),
    Scenario("one slow host", ((200, None), (200, None), (60, None), (200, None)), (1,) * 4, ("host", "pod")),
    Scenario("3 + 5 ranks", ((200, None), (200, None)), (3, 5), ("host", "pod")),
)

_RANK = """
import sys
from pathlib import Path
from meshwright.cluster.detect.lead import detect
from meshwright.cluster.toml.write import write_cluster
found = detect("gloo", timeout_s=90, say=lambda text: print(text, flush=True))
if found is not None:
    Path(sys.argv[1]).write_text(write_cluster(found))
"""


def measure(scenario: Scenario, timeout_s: float) -> Cluster:
    """Run detection inside the scenario's network."""
    hosts = [Host(f"h{i}", f"{mbit}mbit", rack) for i, (mbit, rack) in enumerate(scenario.hosts)]
    rack_rate = f"{scenario.rack_mbit}mbit" if scenario.rack_mbit else None
    with tempfile.TemporaryDirectory() as folder, shaped_network(hosts, rack_rate) as network:
        out = Path(folder) / "cluster.toml"
        network.run([sys.executable, "-c", _RANK, str(out)], scenario.ranks, timeout_s)
        return load_cluster(str(out))


def figures(scenario: Scenario, found: Cluster) -> list[tuple[str, float, float]]:
    """(what, set, found) in bytes per second for every link that was set."""
    rows = []
    by_level = _groups(found.root)
    hosts = [(link.total_bandwidth, name) for name, link in _host_links(found.root)]
    for (mbit, _), (value, name) in zip(scenario.hosts, hosts, strict=True):
        rows.append((name, mbit * _MBIT, value))
    if scenario.rack_mbit:
        rows += [("rack uplink", scenario.rack_mbit * _MBIT, group.link.total_bandwidth) for group in by_level["pod"]]
    return rows


def _groups(group: Group) -> dict[str, list[Group]]:
    found: dict[str, list[Group]] = {group.level: [group]}
    for child, _ in group.children():
        if isinstance(child, Group):
            for level, groups in _groups(child).items():
                found.setdefault(level, []).extend(groups)
    return found


def _host_links(group: Group) -> list[tuple[str, object]]:
    rows: list[tuple[str, object]] = []
    for child, link in group.children():
        if isinstance(child, Group) and child.level == "host":
            rows.append((f"host of {child.device_count}", link))
        elif isinstance(child, Group):
            rows += _host_links(child)
    return rows


def shape_of(found: Cluster) -> tuple[int, ...]:
    """Devices of each host, in order."""
    return tuple(group.device_count for group in _groups(found.root)["host"])


def judge(scenario: Scenario, timeout_s: float) -> dict[str, object]:
    start = time.monotonic()
    found = measure(scenario, timeout_s)
    structure = found.root.levels() == scenario.levels and shape_of(found) == scenario.ranks
    rows = figures(scenario, found) if structure else []
    worst = max((abs(value / truth - 1) for _, truth, value in rows), default=1.0)
    print(f"\n{scenario.name}: structure {'exact' if structure else f'WRONG: {found.root.levels()} {shape_of(found)}'}")
    for what, truth, value in rows:
        print(f"  {what:14} set {truth / _MBIT:6.0f} Mbit/s  found {value / _MBIT:6.1f}  {value / truth - 1:+.1%}")
    if not structure:
        print(found)
    return {
        "scenario": scenario.name,
        "structure": structure,
        "worst_error": worst,
        "passed": structure and worst <= _LIMIT,
        "seconds": time.monotonic() - start,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=None)
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--timeout", type=float, default=240.0, help="seconds per scenario")
    args = parser.parse_args()
    if (reason := why_not()) is not None:
        print(f"not run, and not passed: {reason}")
        return 2
    results = [judge(s, args.timeout) for s in SCENARIOS if args.only is None or s.name in args.only]
    passed = sum(bool(result["passed"]) for result in results)
    print(f"\n{passed} of {len(results)} scenarios passed")
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))
    return 0 if passed == len(results) else 1


if __name__ == "__main__":
    sys.exit(main())
