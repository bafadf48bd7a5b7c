"""`meshwright cluster presets|show|detect`."""

from __future__ import annotations

import argparse
import json
import os
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

from meshwright.errors import ClusterError, counted
from meshwright.models.arguments import add_json, check_folder, write_json

if TYPE_CHECKING:
    from rich.table import Table
    from rich.tree import Tree

    from meshwright.cluster.topology import Cluster
    from meshwright.cluster.tree import Group, Member


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True)
    actions.add_parser("presets", help="list the named clusters")
    show = actions.add_parser("show", help="print a cluster as a tree with bandwidths")
    show.add_argument("cluster", help="a preset such as dgx-h100:4, devices such as h100:8, or a .toml file")
    show.add_argument("--sources", action="store_true", help="also print where each figure comes from")
    show.add_argument("--toml", action="store_true", help="print the TOML form instead")
    add_json(show, "the number of devices and the tables of the TOML form")
    detect = actions.add_parser("detect", help="measure the machines of this torchrun job")
    detect.add_argument("--out", type=Path, default=Path("cluster.toml"), help="the file that rank 0 writes")
    detect.add_argument("--backend", choices=("gloo", "nccl"), default=None, help="default: nccl if there are GPUs")
    detect.add_argument("--timeout", type=float, default=60.0, help="seconds to wait for every rank to join")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run one action; user errors propagate to the caller."""
    if args.action == "presets":
        return _presets()
    if args.action == "show":
        return _show(args)
    return _detect(args)


def _presets() -> int:
    from rich.console import Console
    from rich.table import Table

    from meshwright.cluster.load import load_cluster
    from meshwright.cluster.presets import PRESETS
    from meshwright.cluster.tree import describe_link
    from meshwright.cluster.units import format_bytes

    table = Table("preset", "devices", "memory", "within a host", "between hosts")
    for name in PRESETS:
        cluster = load_cluster(f"{name}:2")
        alone = load_cluster(name)
        device = alone.devices[0]
        network = describe_link(cluster.root.link) if cluster.root.level != "host" else "-"
        table.add_row(
            name,
            f"{alone.device_count} x {device.name}",
            format_bytes(device.memory_bytes),
            describe_link(alone.root.link),
            network,
        )
    Console().print(table)
    return 0


def _show(args: argparse.Namespace) -> int:
    from rich.console import Console

    from meshwright.cluster.load import load_cluster
    from meshwright.cluster.origins import FROM
    from meshwright.cluster.toml.write import write_cluster

    if args.toml and args.json:
        raise ClusterError("--toml and --json", "one of the two forms", "drop one of them")
    check_folder("--json", args.json)
    cluster = load_cluster(args.cluster)
    if args.toml:
        print(write_cluster(cluster), end="")
        return 0
    if args.json:
        tables = tomllib.loads(write_cluster(cluster))
        write_json(args.json, json.dumps({"devices": cluster.device_count} | tables, indent=1))
        if args.json == "-":
            return 0
    console = Console()
    console.print(_tree(cluster))
    left_out = [(figure, source) for figure, source in cluster.sources if source.startswith("left out")]
    if left_out and not args.sources:
        console.print("  the file leaves out, so taken from what is nearest (--sources says where that has it from):")
        for figure, source in left_out:
            console.print(f"    {figure}: {source.split(FROM)[0]}", highlight=False, markup=False, soft_wrap=True)
    for name in _measured_links(cluster.root):
        console.print(_fit(name))
    if args.sources:
        for figure, source in cluster.sources:
            shown = source.replace(FROM, f"\n     {FROM}")
            console.print(f"  {figure}: {shown}", highlight=False, markup=False, soft_wrap=True)
    return 0


def _detect(args: argparse.Namespace) -> int:
    from meshwright.cluster.detect.lead import detect
    from meshwright.cluster.toml.write import write_cluster

    if not args.timeout > 0:
        raise ClusterError(f"--timeout {args.timeout:g}", "seconds, more than 0")
    if os.path.isdir(args.out) or not os.path.isdir(args.out.absolute().parent):
        raise ClusterError(f"--out {args.out}", "a file in a folder that exists")
    found = detect(backend=args.backend, timeout_s=args.timeout)
    if found is not None:  # rank 0 has the answer
        try:
            args.out.write_text(write_cluster(found), encoding="utf-8")
        except OSError as error:
            raise ClusterError(f"cannot write {args.out}: {error.strerror}", "a file that can be written") from error
        print(found)
        for figure, source in found.sources:
            print(f"  {figure}: {source}")
        print(f"wrote {args.out}")
    return 0


def _measured_links(group: Group) -> list[str]:
    """The tables of measured collectives that the cluster's links name, each once."""
    inner = [name for member in group.members if not isinstance(member.of, str) for name in _measured_links(member.of)]
    return list(dict.fromkeys([*inner, *([group.link.measured] if group.link.measured else [])]))


def _fit(name: str) -> Table:
    """Fitted against measured seconds of collectives, a few sizes of each kind and group size."""
    from rich.table import Table

    from meshwright.cluster.collective_table import link_table, measured_lines
    from meshwright.cluster.units import format_bytes

    data = link_table(name)
    table = Table("collective", "devices", "bytes: measured, fitted in us", title=f"{name}: {data['source']}")
    for kind, sizes in data["lines"].items():
        for size in sizes:
            lines = measured_lines(name, kind, int(size))
            cells = []
            for n_bytes, measured_s in data["samples"].get(kind, {}).get(size, []):
                fitted_s = min(s_per_byte * n_bytes + fixed_s for s_per_byte, fixed_s in lines)
                cells.append(f"{format_bytes(n_bytes)}: {measured_s * 1e6:.4g}, {fitted_s * 1e6:.4g}")
            large = f"large: {1 / min(line[0] for line in lines) / 1e9:.4g} GB/s of the tensor, fitted"
            table.add_row(kind, size, "; ".join(cells) or large)
    return table


def _tree(cluster: Cluster) -> Tree:
    from rich.tree import Tree

    tree = Tree(f"{cluster.name}: {counted(cluster.device_count, 'device')}, {cluster.backend}")
    _add(tree, cluster.root, cluster)
    return tree


def _add(tree: Tree, group: Group, cluster: Cluster, prefix: str = "") -> None:
    from meshwright.cluster.tree import describe_link

    branch = tree.add(f"{prefix}{group.level}: {describe_link(group.link)}")
    for member in group.members:
        if isinstance(member.of, str):
            branch.add(_device_line(member, cluster))
        else:
            uplink = f"(uplink {describe_link(member.uplink)}) " if member.uplink else ""
            _add(branch, member.of, cluster, f"{member.count} x {uplink}")


def _device_line(member: Member, cluster: Cluster) -> str:
    from meshwright.cluster.units import format_bytes, format_rate

    device = cluster.device(str(member.of))
    peaks = ", ".join(f"{rate / 1e12:.4g} {dtype}" for dtype, rate in device.peaks)
    return (
        f"{member.count} x {device.name}: {format_bytes(device.memory_bytes)} at "
        f"{format_rate(device.memory_bandwidth)}, TFLOP/s {peaks}"
    )
