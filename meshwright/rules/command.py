"""`meshwright rules`: the table, family by family, with each rule's factors and tier."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator

from meshwright.rules.table import FAMILIES


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("rules", help="list the sharding rules and what their factors are")
    parser.add_argument("filter", nargs="?", default="", help="only ops whose name contains this text")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    rows = [row for row in _rows() if args.filter in row["op"]]
    print(json.dumps(rows, indent=1) if args.json else "\n".join(_lines(rows)))
    return 0


def _rows() -> Iterator[dict[str, str]]:
    for family, rules in FAMILIES.items():
        for target, rule in rules.items():
            yield {"op": target, "family": family, "factors": rule.text, "tier": rule.tier}


def _lines(rows: list[dict[str, str]]) -> Iterator[str]:
    width = max((len(row["op"]) for row in rows), default=0)
    family = ""
    for row in rows:
        if row["family"] != family:
            family = row["family"]
            yield f"{family}:"
        yield f"  {row['op']:<{width}}  {row['tier']:<8}  {row['factors']}"
    yield f"{len(rows)} rules; an op without one runs alike on every rank (tier fallback)"
