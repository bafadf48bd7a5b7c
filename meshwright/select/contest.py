"""Reads and writes the JSON of the ASPLOS / EuroSys 2025 contest on intra-operator parallelism.

A node is alive in one interval [begin, end) and each of its options uses so many bytes all that time, under one
limit for all moments. Rows are made only at moments where the set of live nodes is maximal: between two
neighbouring changes it only grows, or only shrinks, so every other moment holds a subset of one of these
(`meshwright.select.reductions.rows` proves and does the same for any problem; doing it here keeps the row count
small from the start). Costs of 1e18 and above mean forbidden.
"""

from __future__ import annotations

import gzip
import zlib
from itertools import chain, pairwise
from pathlib import Path

import msgspec
import numpy as np

from meshwright.errors import ProblemError
from meshwright.select.builder import ProblemBuilder
from meshwright.select.graph import Graph
from meshwright.select.problem import Floats, Ints, Problem, running

FORBIDDEN = 1e18
FORM = (
    "a selection problem (options with costs and bytes, to choose one each) in JSON, plain or gzipped: "
    '"problem": {"nodes", "edges", "usage_limit"}'
)
WRITTEN = "name one; `meshwright plan MODEL --dump-problem FILE` writes that of a plan"


class _Nodes(msgspec.Struct):
    intervals: list[tuple[int, int]]
    costs: list[list[float]]
    usages: list[list[float]]


class _Edges(msgspec.Struct):
    nodes: list[tuple[int, int]]
    costs: list[list[float]]


class _Body(msgspec.Struct):
    nodes: _Nodes
    edges: _Edges
    usage_limit: float | None = None
    name: str = "problem"


class _File(msgspec.Struct):
    problem: _Body


def load(path: str | Path) -> Problem:
    """The problem in a contest file, plain or gzipped."""
    raw = _unpacked(path)
    try:
        body = msgspec.json.decode(raw, type=_File).problem
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as fault:
        given = f"{path} is a plan" if _is_plan(raw) else f"{path} is not a selection problem: {fault}"
        raise ProblemError(given, FORM, WRITTEN) from fault
    return _problem(body).verify()


def _unpacked(path: str | Path) -> bytes:
    try:
        raw = Path(path).read_bytes()
        return gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    except (EOFError, zlib.error, gzip.BadGzipFile) as fault:
        raise ProblemError(f"{path} is a damaged gzip file: {fault}", "the whole file", "fetch it again") from fault
    except OSError as fault:
        raise ProblemError(f"{path} cannot be read: {fault.strerror}", FORM, WRITTEN) from fault


def _is_plan(raw: bytes) -> bool:
    """Whether the JSON of another command was named."""
    try:
        found = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return False
    return isinstance(found, dict) and {"schema", "stages", "choices"} <= set(found)


def _problem(body: _Body) -> Problem:
    nodes, edges = body.nodes, body.edges
    if not len(nodes.intervals) == len(nodes.costs) == len(nodes.usages):
        raise ProblemError(
            f"{len(nodes.intervals)} intervals, {len(nodes.costs)} cost lists and {len(nodes.usages)} usage lists",
            "one of each per node",
        )
    if len(edges.nodes) != len(edges.costs):
        raise ProblemError(f"{len(edges.nodes)} edges but {len(edges.costs)} edge cost lists", "one of each per edge")
    width = np.array([len(c) for c in nodes.costs], dtype=np.int64)
    for node, (costs, usages) in enumerate(zip(nodes.costs, nodes.usages, strict=True)):
        if len(costs) != len(usages):
            raise ProblemError(f"node {node} has {len(costs)} costs but {len(usages)} usages", "one of each per option")
    offsets = running(width)
    begin, end = _intervals(nodes.intervals)
    usage = _flat(nodes.usages)
    owner = np.repeat(np.arange(len(width)), width)
    limited = body.usage_limit is not None
    used = (end[owner] > begin[owner]) & (usage != 0) & limited
    rows, first, last = _maximal_moments(begin, end, np.bincount(owner[used], minlength=len(width)) > 0)
    return Problem(
        offsets=offsets,
        costs=_forbid(_flat(nodes.costs)),
        edge_nodes=_pairs(edges.nodes, "edge"),
        edge_offsets=running([len(c) for c in edges.costs]),
        edge_costs=_forbid(_flat(edges.costs)),
        limits=np.full(rows, np.inf if body.usage_limit is None else body.usage_limit),
        use_option=np.flatnonzero(used),
        use_begin=first[owner[used]],
        use_end=last[owner[used]],
        use_bytes=usage[used],
        name=body.name,
    )


def _intervals(pairs: list[tuple[int, int]]) -> tuple[Ints, Ints]:
    array = _pairs(pairs, "the interval of node")
    for node in np.flatnonzero(array[:, 0] < 0)[:1]:
        raise ProblemError(f"node {node} is alive over {array[node].tolist()}", "moments from 0 on")
    for node in np.flatnonzero(array[:, 1] < array[:, 0])[:1]:
        raise ProblemError(f"node {node} is alive over {array[node].tolist()}", "a begin not after its end")
    return array[:, 0], array[:, 1]


def _pairs(pairs: list[tuple[int, int]], what: str) -> Ints:
    try:
        return np.array(pairs, dtype=np.int64).reshape(-1, 2)
    except OverflowError as fault:
        index = next(i for i, pair in enumerate(pairs) if max(map(abs, pair)) >= 2**63)
        raise ProblemError(f"{what} {index} is {list(pairs[index])}", "numbers below 2**63") from fault


def _maximal_moments(begin: Ints, end: Ints, live: np.ndarray) -> tuple[int, Ints, Ints]:
    """Rows kept, and per node the first and one past the last of them it is alive in.

    Moment t is kept when something begins at t and the next change after t is an end: the live set at t is then a local
    maximum of a sequence that moves by inclusion.
    """
    change = np.unique(np.concatenate((begin[live], end[live])))
    begins, ends = np.isin(change, begin[live]), np.isin(change, end[live])
    kept = change[:-1][begins[:-1] & ends[1:]]
    return len(kept), np.searchsorted(kept, begin), np.searchsorted(kept, end)


def _flat(lists: list[list[float]]) -> Floats:
    return np.fromiter(chain.from_iterable(lists), dtype=np.float64, count=sum(map(len, lists)))


def _forbid(costs: Floats) -> Floats:
    costs[costs >= FORBIDDEN] = np.inf
    return costs


def dump(problem: Problem, path: str | Path) -> None:
    """Writes a problem in the contest's form; only one with at most one use per option, one interval per node, fits
    it.
    """
    begin, end, usage = _single_interval(problem)
    limits = np.unique(problem.limits)
    if len(limits) > 1:
        raise ProblemError(f"limits from {limits[0]:g} to {limits[-1]:g}", "one limit: the contest's form has no more")
    body = _Body(
        nodes=_Nodes(
            intervals=list(zip(begin.tolist(), end.tolist(), strict=True)),
            costs=_lists(_allow(problem.costs), problem.offsets),
            usages=_lists(usage, problem.offsets),
        ),
        edges=_Edges(
            nodes=[(int(a), int(b)) for a, b in problem.edge_nodes],
            costs=_lists(_allow(problem.edge_costs), problem.edge_offsets),
        ),
        usage_limit=float(limits[0]) if len(limits) and np.isfinite(limits[0]) else None,
        name=problem.name,
    )
    raw = msgspec.json.encode(_File(body))
    Path(path).write_bytes(gzip.compress(raw) if str(path).endswith(".gz") else raw)


def split_intervals(problem: Problem) -> Problem:
    """The same problem with one interval per node and one use per option, as the contest's form wants it.

    What a node uses in further intervals is moved to nodes of no cost that are tied to it option by option.
    """
    build = ProblemBuilder(problem.name)
    for node in range(problem.nodes):
        build.node(problem.costs[problem.offsets[node] : problem.offsets[node + 1]], name=problem.label(node))
    for edge, (one, other) in enumerate(problem.edge_nodes):
        build.edge(int(one), int(other), problem.matrix(edge))
    for limit in problem.limits:
        build.row(float(limit))
    for node, use in Graph(problem).use.items():
        for item, (begin, end) in enumerate(zip(use.begin.tolist(), use.end.tolist(), strict=True)):
            holder, sizes = node, use.bytes[item]
            if item:
                holder = build.node(np.zeros(len(sizes)), name=f"{problem.label(node)} in rows {begin} to {end}")
                build.edge(node, holder, np.where(np.eye(len(sizes), dtype=bool), 0.0, np.inf))
            for option in np.flatnonzero(sizes):
                build.hold(begin, end, holder, int(option), float(sizes[option]))
    return build.build()


def _single_interval(problem: Problem) -> tuple[Ints, Ints, Floats]:
    begin = np.zeros(problem.nodes, dtype=np.int64)
    end = np.zeros(problem.nodes, dtype=np.int64)
    usage = np.zeros(len(problem.costs))
    begin[problem.use_node], end[problem.use_node] = problem.use_begin, problem.use_end
    same = (begin[problem.use_node] == problem.use_begin) & (end[problem.use_node] == problem.use_end)
    once = np.bincount(problem.use_option, minlength=len(usage)) <= 1
    for use in np.flatnonzero(~same | ~once[problem.use_option])[:1]:
        raise ProblemError(f"{problem.label(int(problem.use_node[use]))} is alive in several intervals",
                           "one interval per node: the contest's form has no more")  # fmt: skip
    usage[problem.use_option] = problem.use_bytes
    return begin, end, usage


def _lists(flat: Floats, offsets: Ints) -> list[list[float]]:
    values = flat.tolist()
    return [values[a:b] for a, b in pairwise(offsets.tolist())]


def _allow(costs: Floats) -> Floats:
    return np.where(np.isinf(costs), FORBIDDEN, costs)
