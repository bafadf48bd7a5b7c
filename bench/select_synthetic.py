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
