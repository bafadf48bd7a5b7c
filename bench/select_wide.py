"""Problems with very many options a node: programs on meshes of three axes, forward and backward.

An op has a few strategies per mesh axis, and its options are their combinations over three axes: of 4 to 10 strategies
64 to 1,000. A strategy fixes the layout of the output and of either input along its axis, and with these what
conversions cost. Kinds of problem:

    layouts    edges see layouts only: options of equal layout are one to them
    scattered  every pair of options has a price of its own, 45 % of the options are there
    joined     scattered, nearly every op has a second input from afar, and conversions cost more than ops do:
               bounds are loose and forests cover little
    random     blocks of `layered`, with classes and prices drawn anew for every edge

`-memory` behind any of them: with limits that bind.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from bench.select_synthetic import BLOCK, INNER
from meshwright.select import Problem, ProblemBuilder
from meshwright.select.problem import Floats, Ints

HELD_OUT = (11,)  # seeds that nothing was chosen by; the engine was worked on with seed 1
AXES = (2, 2, 4)
SLOWNESS = np.array([1.0, 1.3, 4.0])  # of each axis, per byte
LETTERS = 4  # shards of dim 0, shards of dim 1, replicated, partial sums
REPLICATED, PARTIAL = 2, 3
# What a tensor of one layout along an axis pays to have another: all-to-all, all-gather, slices, reduction.
CONVERT = np.array([[0.0, 1.0, 2.0, 9.0], [1.0, 0.0, 2.0, 9.0], [0.1, 0.1, 0.0, 9.0], [2.0, 2.0, 4.0, 0.0]])


@dataclass(frozen=True, slots=True)
class Kind:
    """present: share of the options. work: logarithm of what an op costs. skips: ops with an input from afar."""

    number: int
    present: float = 1.0
    work: float = 2.0
    skips: float = 0.35
    noise: float = 0.0


KINDS = {
    "layouts": Kind(0),
    "scattered": Kind(1, present=0.45, noise=0.2),
    "joined": Kind(5, present=0.45, work=0.0, skips=0.9, noise=0.2),
    "random": Kind(3),
}


@dataclass(frozen=True, slots=True)
class Op:
    """Options of an op. out, first, second: the layout of its output and its inputs, a number for all axes."""

    cost: Floats
    out: Ints
    first: Ints
    second: Ints
    bytes: Floats


def wide(name: str, seed: int, nodes: int = 800, options: int = 1000) -> Problem:
    """One of `KINDS`, with `-memory` behind it or without; of every node at most so many options."""
    base = name.removesuffix("-memory")
    kind, limited = KINDS[base], base != name
    rng = np.random.default_rng((seed, kind.number))
    title = f"{name}-{seed}"
    if base == "random":
        return _random(rng, nodes, options, title, limited)
    half = nodes // 2
    forward = [_op(rng, options, kind) for _ in range(half)]
    backward = [_backward(rng, op) for op in forward]
    build = ProblemBuilder(title)
    for op in (*forward, *backward):
        build.node(op.cost)
    for source, target, place in _wiring(rng, half, kind.skips):
        size = float(rng.uniform(0.3, 3.0))
        seen = forward[target].first if place == 0 else forward[target].second
        build.edge(source, target, _prices(rng, kind, size, forward[source].out, seen))
        # The gradient runs the other way, between the backward ops.
        build.edge(half + target, half + source, _prices(rng, kind, size, seen, backward[source].out))
    for i, (op, back) in enumerate(zip(forward, backward, strict=True)):
        build.edge(i, half + i, _prices(rng, kind, 1.0, op.first, back.first))
    problem = build.build()
    return _limited(problem, forward) if limited else problem


def _op(rng: np.random.Generator, most: int, kind: Kind) -> Op:
    """With 4 to 10 strategies per axis."""
    count = int(rng.choice([4, 5, 6, 7, 8, 10], p=[0.3, 0.25, 0.2, 0.1, 0.1, 0.05]))
    letters = rng.integers(0, LETTERS, (count, 3))
    letters[0], letters[1] = (0, 0, 0), (REPLICATED, REPLICATED, REPLICATED)
    letters[:, 1:] = np.where(letters[:, 1:] == PARTIAL, REPLICATED, letters[:, 1:])
    work = np.where(letters[:, :1] == REPLICATED, 1.0, 1.0 / np.array(AXES))
    held = np.where(letters[:, :1] >= REPLICATED, 1.0, 1.0 / np.array(AXES))
    paid = rng.exponential(0.15, count)[:, None] * SLOWNESS
    picked = np.array(list(product(range(count), repeat=3)))
    kept = np.sort(rng.permutation(len(picked))[: max(2, min(most, int(kind.present * len(picked))))])
    picked, axis = picked[kept], np.arange(3)
    scale = rng.lognormal(kind.work, 0.8)
    cost = scale * work[picked, axis].prod(axis=1) + paid[picked, axis].sum(axis=1)
    number = LETTERS ** np.arange(3)
    out, first, second = ((letters[:, i][picked] * number).sum(axis=1) for i in range(3))
    return Op(cost * rng.uniform(0.9, 1.1, len(cost)), out, first, second,
              rng.lognormal(2.0, 0.8) * held[picked, axis].prod(axis=1))  # fmt: skip


def _backward(rng: np.random.Generator, op: Op) -> Op:
    """The same strategies for twice the work; what it makes has the layout of the forward's output."""
    order = rng.permutation(len(op.cost))
    return Op(2 * op.cost[order], op.out[order], op.first[order], op.second[order], np.zeros(len(order)))


def _wiring(rng: np.random.Generator, count: int, skips: float) -> list[tuple[int, int, int]]:
    """(source, target, which input): a chain, and edges from up to a dozen ops before."""
    found = [(i - 1, i, 0) for i in range(1, count)]
    for i in range(2, count):
        if rng.random() < skips:
            found.append((max(0, i - int(rng.integers(2, 13))), i, 1))
    return found


def _prices(rng: np.random.Generator, kind: Kind, size: float, rows: Ints, columns: Ints) -> Floats:
    """Of converting each layout of `rows` to each of `columns`."""
    total = np.zeros((len(rows), len(columns)))
    for axis in range(3):
        digits = ((each // LETTERS**axis) % LETTERS for each in (rows, columns))
        total += SLOWNESS[axis] * CONVERT[np.ix_(*digits)]
    if kind.noise:
        total *= rng.uniform(1 - kind.noise, 1 + kind.noise, total.shape)
    return size * total


def _limited(problem: Problem, forward: list[Op]) -> Problem:
    """Every output is held until its backward op has run; a limit halfway from what fast options hold to the least."""
    half = problem.nodes // 2
    fast = sum(op.bytes[op.cost.argmin()] for op in forward)
    least = sum(op.bytes.min() for op in forward)
    used = np.concatenate([op.bytes for op in forward])
    begin = np.repeat(np.arange(half), [len(op.bytes) for op in forward])
    return replace(
        problem,
        limits=np.full(half, 0.5 * (fast + least)),
        use_option=np.arange(len(used)),
        use_begin=begin,
        use_end=np.full(len(used), half),
        use_bytes=used,
    ).verify()


def _random(rng: np.random.Generator, nodes: int, options: int, title: str, limited: bool) -> Problem:
    build = ProblemBuilder(title)
    widths = np.exp(rng.uniform(np.log(10), np.log(options), nodes)).astype(int)
    sizes = [rng.integers(1, 100, width).astype(float) for width in widths]
    fast = 0.0
    for size in sizes:
        cost = rng.integers(0, 100, len(size)) + np.round(2000.0 / size)
        build.node(cost)
        fast += size[cost.argmin()]
    for base in range(0, nodes - BLOCK + 1, BLOCK):
        outer = [(base - 1, base), (base - 2, base)] if base else []
        for a, b in (*((base + a, base + b) for a, b in INNER), *outer):
            build.edge(a, b, _conversion(rng, int(widths[a]), int(widths[b])))
    if limited:
        build.row(0.5 * (fast + sum(size.min() for size in sizes)))
        for node, size in enumerate(sizes):
            for option in range(len(size)):
                build.use(0, node, option, size[option])
    return build.build()


def _conversion(rng: np.random.Generator, rows: int, columns: int) -> Floats:
    """Half as many layouts as options on average; equal ones cost nothing, others what a conversion costs."""
    layouts = max(2, (rows + columns) // 4)
    table = rng.integers(10, 200, (layouts, layouts)).astype(float)
    np.fill_diagonal(table, 0.0)
    return table[np.ix_(rng.integers(0, layouts, rows), rng.integers(0, layouts, columns))]
