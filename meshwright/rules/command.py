"""`meshwright rules`: the table, family by family, with each rule's factors, tier and proof; users' rules after it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict

from meshwright.models.arguments import add_json, write_json
from meshwright.rules.coverage import MODELS, coverage
from meshwright.rules.register import user_rules
from meshwright.rules.table import FAMILIES, UNPROVEN

PROVEN = "2, 3, 2x2"
"""The meshes on which the proof runs every strategy of a rule."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("filter", nargs="?", default="", help="only ops whose name contains this text")
    parser.add_argument(
        "--coverage", action="store_true", help="list the ops of 75 real architectures, and what serves each"
    )
    add_json(parser, "the rules")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if args.coverage:
        return _run_coverage(args)
    rows = [row for row in _rows() if args.filter in row["op"]]
    if args.json:
        write_json(args.json, json.dumps(rows, indent=1))
    if args.json != "-":
        print("\n".join(_lines(rows, args.filter)))
    return 0 if rows else 1


def _run_coverage(args: argparse.Namespace) -> int:
    found = [one for one in coverage() if args.filter in one.op]
    if args.json:
        write_json(args.json, json.dumps([asdict(one) for one in found], indent=1))
        return 0
    width = max((len(one.op) for one in found), default=0)
    for one in found:
        print(f"  {one.models:>2}  {one.op:<{width}}  {one.tier:<13}  {one.factors}")
    table = sum(one.tier == "table" for one in found)
    print(f"{len(found)} ops of {MODELS} architectures, by how many hold each: {table} served by the table")
    return 0


def _rows() -> Iterator[dict[str, str]]:
    for family, rules in (*FAMILIES.items(), ("registered", user_rules())):
        for target, rule in rules.items():
            proven = UNPROVEN.get(target, PROVEN) if rule.tier == "table" else "when it first serves an op"
            yield {"op": target, "family": family, "factors": rule.text, "tier": rule.tier, "proven": proven}


def _lines(rows: list[dict[str, str]], wanted: str) -> Iterator[str]:
    width = max((len(row["op"]) for row in rows), default=0)
    family = ""
    for row in rows:
        if row["family"] != family:
            family = row["family"]
            yield f"{family}:"
        yield f"  {row['op']:<{width}}  {row['tier']:<5}  {row['factors']}"
    unproven = [row for row in rows if row["proven"] != PROVEN]
    for row in unproven:
        yield f"not proven: {row['op']} ({row['proven']})"
    if not rows:
        yield f"no rule for an op with {wanted!r} in its name"
    else:
        count = len(rows) - len(unproven)
        yield f"{len(rows)} rules, {count} proven on meshes of {PROVEN}: every strategy, with gradients"
    yield "an op without one is looked for, once its shapes are known, in DTensor's rules (tier dtensor) and by"
    yield "running it on small tensors (discovered); what is found is proven. Failing that it runs alike on every rank"
