"""Layered synthetic problems: transformer-like blocks of 20 nodes with residual edges under one limit that binds."""

from __future__ import annotations

import numpy as np

from meshwright.select import Problem, ProblemBuilder, solve

BLOCK = 20
# Inside a block: a chain, two residual edges and a branch that joins again (query, key, value).
INNER = [*((i, i + 1) for i in range(BLOCK - 1)), (0, 9), (9, 18), (2, 5), (3, 6), (11, 14)]


def layered(nodes: int, options: int, *, repeated: bool, seed: int = 0, tightness: float = 0.5) -> Problem:
    """`repeated`: every block has the same costs, so that whole layers flip together. The limit lies `tightness` of
    the way from what the cheapest choice uses down to the least any choice uses.
    """
    free = _build(nodes, options, repeated, seed, np.inf)
    cheapest = solve(free, seconds=30).choice
    usage = float(_sizes(free)[np.asarray(cheapest), np.arange(nodes)].sum())
    least = float(_sizes(free).min(axis=0).sum())
    return _build(nodes, options, repeated, seed, usage + (least - usage) * tightness)


def _build(nodes: int, options: int, repeated: bool, seed: int, limit: float) -> Problem:
    blocks = nodes // BLOCK
    build = ProblemBuilder(f"layered-{nodes}x{options}-{'repeated' if repeated else 'random'}")
    build.row(limit)
    for block in range(blocks):
        rng = np.random.default_rng((seed, 0 if repeated else block))
        for i in range(BLOCK):
            size = rng.integers(1, 100, options).astype(float)
            node = build.node(rng.integers(0, 100, options) + np.round(2000.0 / size), name=f"{block}.{i}")
            for option in range(options):
                build.use(0, node, option, size[option])
        base = block * BLOCK
        for a, b in INNER:
            build.edge(base + a, base + b, _conversion(rng, options))
        if block:
            build.edge(base - 1, base, _conversion(rng, options))
            build.edge(base - 2, base, _conversion(rng, options))
    return build.build()


def _conversion(rng: np.random.Generator, options: int) -> np.ndarray:
    """Options stand for a few layouts; equal layouts cost nothing, others what a conversion costs."""
    layouts = max(2, options // 2)
    table = rng.integers(10, 200, (layouts, layouts)).astype(float)
    np.fill_diagonal(table, 0.0)
    return table[np.ix_(rng.integers(0, layouts, options), rng.integers(0, layouts, options))]


def _sizes(problem: Problem) -> np.ndarray:
    options = problem.options(0)
    size = np.zeros(len(problem.costs))
    size[problem.use_option] = problem.use_bytes
    return size.reshape(-1, options).T


def segment(*, axes: tuple[int, ...] = (8, 8), rows: int = 0, seed: int = 0) -> Problem:
    """A stand-in for one block on a two-axis mesh, larger than a llama block: 240 ops, 6 to 30 options each, joined to
    the last and to an earlier op by conversions between 16 layouts; `rows` moments, each with a limit that binds.
    """
    rng = np.random.default_rng(seed)
    build = ProblemBuilder(f"segment-{rows}-rows")
    for _ in range(rows):
        build.row(240 / max(rows, 1) * 1.5 * 24.0)
    layouts = [(a, b) for a in range(4) for b in range(4)]  # S(0), S(1), R, P on either axis
    price = np.array([[_layout_price(u, v, axes) for v in layouts] for u in layouts])
    kinds = [rng.integers(0, len(layouts), int(rng.integers(6, 31))) for _ in range(12)]
    node_kind: list[int] = []
    for i in range(240):
        kind = int(rng.integers(0, len(kinds)))
        node_kind.append(kind)
        node = build.node(np.round(rng.random(len(kinds[kind])) * 100, 2), name=f"op{i}")
        for back in {1, int(rng.integers(1, 4))}:
            if i >= back:
                build.edge(node - back, node, price[np.ix_(kinds[node_kind[i - back]], kinds[kind])])
        for option in range(len(kinds[kind]) if rows else 0):
            begin = i * rows // 240
            build.hold(begin, min(rows, begin + 1 + rows // 4), node, option, float(rng.integers(1, 64)))
    return build.build()


def _layout_price(u: tuple[int, int], v: tuple[int, int], axes: tuple[int, ...]) -> float:
    return float(sum(0.0 if a == b else 3.0 * size + 5 * abs(a - b) for a, b, size in zip(u, v, axes, strict=True)))
