"""A segment's ops under names of their own: `x`, `query_weight`, `linear_1`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from meshwright.capture.cutting.fold import shared_module
from meshwright.capture.program import Op, Ref, SegmentGraph, Value

Names = tuple[str, ...]


def reads(body: Iterable[Op]) -> list[str]:
    """Names read but not made, in order of first use."""
    made: set[str] = set()
    found: dict[str, None] = {}
    for op in body:
        found.update((name, None) for name in op.uses() if name not in made)
        made.update(value.name for value in op.results)
    return list(found)


def localise(
    body: list[Op],
    groups: tuple[Names, Names, Names, Names],
    outputs: tuple[str, ...],
    updates: list[tuple[str, str]],
    types: dict[str, Value],
) -> SegmentGraph:
    """The graph of a body. groups: what it reads, as inputs, shared_values, parameters and buffers."""
    handed, shared, parameters, buffers = groups
    names: dict[str, str] = {}
    taken: set[str] = set()

    def name(old: str, wanted: str) -> str:
        base = re.sub(r"\W", "_", wanted)
        new, count = base, 0
        while new in taken:
            count += 1
            new = f"{base}_{count}"
        taken.add(new)
        names[old] = new
        return new

    def bind(olds: Names, wanted: list[str]) -> tuple[Value, ...]:
        return tuple(replace(types[old], name=name(old, want)) for old, want in zip(olds, wanted, strict=True))

    arguments = (
        bind(handed, ["x"] * len(handed)),
        bind(shared, [re.sub(r"_\d+$", "", old) for old in shared]),
        bind(parameters, _tails(parameters)),
        bind(buffers, _tails(buffers)),
    )
    ops = []
    for op in body:
        moved = op.map(lambda leaf: Ref(names[leaf.name]) if isinstance(leaf, Ref) else leaf)
        results = tuple(replace(v, name=name(v.name, re.sub(r"_\d+(?=_|$)", "", v.name))) for v in op.results)
        ops.append(replace(moved, results=results))
    local_updates = tuple((names[buffer], names[value]) for buffer, value in updates)
    return SegmentGraph(*arguments, tuple(ops), tuple(names[old] for old in outputs), local_updates)


def _tails(paths: Names) -> list[str]:
    """`layers.0.attention.query.weight` -> `attention_query_weight`, less what all of them share."""
    parts = [path.split(".") for path in paths]
    shared = 0
    while len(parts) > 1 and all(len(p) > shared + 1 and p[shared] == parts[0][shared] for p in parts):
        shared += 1
    return ["_".join(p[shared:]) if not p[shared].isdigit() else "_".join(["p", *p[shared:]]) for p in parts]


def module_of(body: list[Op]) -> str:
    """The module that holds all of it, or its first module."""
    first = next((op.module.split(".")[0] for op in body if op.module), "segment")
    return ".".join(shared_module(body)) or first
