"""`meshwright rules`: the table, family by family, with each rule's factors, tier and proof; users' rules after it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator

from meshwright.rules.register import user_rules
from meshwright.rules.table import FAMILIES, UNPROVEN

PROVEN = "2, 3, 2x2"
"""The meshes on which the proof runs every strategy of a rule."""


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
    for family, rules in (*FAMILIES.items(), ("registered", user_rules())):
        for target, rule in rules.items():
            proven = UNPROVEN.get(target, PROVEN) if rule.tier == "table" else "no"
            yield {"op": target, "family": family, "factors": rule.text, "tier": rule.tier, "proven": proven}


def _lines(rows: list[dict[str, str]]) -> Iterator[str]:
    width = max((len(row["op"]) for row in rows), default=0)
    family = ""
    for row in rows:
        if row["family"] != family:
            family = row["family"]
            yield f"{family}:"
        yield f"  {row['op']:<{width}}  {row['tier']:<8}  {row['factors']}"
    unproven = [row for row in rows if row["proven"] != PROVEN]
    for row in unproven:
        yield f"not proven: {row['op']} ({row['proven']})"
    yield f"{len(rows)} rules, {len(rows) - len(unproven)} proven on meshes of {PROVEN}: every strategy, with gradients"
    yield "an op without one is tried on small tensors (tier discovered); failing that, it runs alike on every rank"
