"""Random small problems of every kind the engine meets, and their optimum by enumeration."""

from __future__ import annotations

import numpy as np

from meshwright.select import Problem, ProblemBuilder

KINDS = ("chain", "tree", "dense", "layers")


def enumerate_best(problem: Problem) -> tuple[float, list[int]]:
    """The least cost of a feasible choice and that choice; +inf when there is none. Every choice is looked at."""
    width = [problem.options(i) for i in range(problem.nodes)]
    every = np.stack([axis.reshape(-1) for axis in np.meshgrid(*map(np.arange, width), indexing="ij")], axis=1)
    cost = problem.costs[problem.offsets[:-1] + every].sum(axis=1)
    for edge, (a, b) in enumerate(problem.edge_nodes.tolist()):
        cost += problem.matrix(edge)[every[:, a], every[:, b]]
    for row, limit in enumerate(problem.limits.tolist()):
        usage = np.zeros(len(every))
        for use in np.flatnonzero((problem.use_begin <= row) & (problem.use_end > row)):
            node = problem.use_node[use]
            local = problem.use_option[use] - problem.offsets[node]
            usage += problem.use_bytes[use] * (every[:, node] == local)
        cost[usage > limit] = np.inf
    best = int(cost.argmin())
    return float(cost[best]), every[best].tolist()


def enumerate_optimum(problem: Problem) -> float:
    return enumerate_best(problem)[0]


def random_problem(
    seed: int, *, kind: str | None = None, rows: int | None = None, tightness: float | None = None
) -> Problem:
    """Integer costs, up to 7 nodes; `tightness` 0 leaves every row loose, 1 leaves room for the least bytes only."""
    rng = np.random.default_rng(seed)
    kind = KINDS[seed % len(KINDS)] if kind is None else kind
    rows = int(rng.integers(0, 5)) if rows is None else rows
    build = ProblemBuilder(f"{kind}-{seed}")
    nodes = int(rng.integers(1, 8))
    widths = [int(rng.integers(2, 4))] * nodes if kind == "layers" else rng.integers(1, 5, nodes).tolist()
    forbidden = float(rng.choice([0.0, 0.2, 0.6]))
    repeated = rng.integers(0, 20, (max(widths), max(widths))).astype(float)
    for width in widths:
        costs = rng.integers(0, 12, width).astype(float)
        costs[rng.random(width) < forbidden / 6] = np.inf
        build.node(costs)
    for a, b in _pairs(kind, nodes, rng):
        matrix = repeated if kind == "layers" else rng.integers(0, 20, (widths[a], widths[b])).astype(float)
        matrix = matrix[: widths[a], : widths[b]].copy()
        matrix[rng.random(matrix.shape) < forbidden] = np.inf
        if rng.random() < 0.25 and widths[a] == widths[b]:  # a bijective edge
            matrix[~np.eye(widths[a], dtype=bool)[rng.permutation(widths[a])]] = np.inf
        build.edge(a, b, matrix)
    _add_rows(build, rows, widths, rng, float(rng.random()) if tightness is None else tightness)
    return build.build()


def _pairs(kind: str, nodes: int, rng: np.random.Generator) -> list[tuple[int, int]]:
    if kind == "tree":
        return [(int(rng.integers(0, i)), i) for i in range(1, nodes)]
    if kind == "dense":
        return [(a, b) for a in range(nodes) for b in range(a + 1, nodes) if rng.random() < 0.7]
    chain = [(i, i + 1) for i in range(nodes - 1)]
    skips = [(i, i + 2) for i in range(0, nodes - 2, 2)]
    return chain if kind == "chain" else [*chain, *skips, *skips[:1]]  # a parallel edge too


def _add_rows(build: ProblemBuilder, rows: int, widths: list[int], rng: np.random.Generator, tightness: float) -> None:
    """Every option has its own intervals and bytes; some nodes are counted twice in a row."""
    held: list[tuple[int, int, int, int, float]] = []
    for node, width in enumerate(widths):
        for option in range(width):
            for _ in range(int(rng.integers(0, 3)) if rows else 0):
                begin = int(rng.integers(0, rows))
                held.append((begin, int(rng.integers(begin, rows + 1)), node, option, float(rng.integers(0, 10))))
    for row in range(rows):
        least = most = 0.0
        for node, width in enumerate(widths):
            total = [sum(h[4] for h in held if h[0] <= row < h[1] and h[2:4] == (node, o)) for o in range(width)]
            least, most = least + min(total), most + max(total)
        build.row(float(np.floor(most + (least - most) * tightness)) if rng.random() < 0.8 else np.inf)
    for begin, end, node, option, size in held:
        build.hold(begin, end, node, option, size)
