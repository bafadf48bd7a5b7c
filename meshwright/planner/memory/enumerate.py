"""Enumeration of the rematerialisations of a tiny sharded program: all combinations of the segments' points.

A step is priced before its bytes are, so combinations are predicted by rising step: the first that fits is the fastest.
Nested orders, which run segments forward more than once, are bounded, not enumerated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, chain, combinations, product
from math import inf, prod

from meshwright.capture.program import Program, SegmentGraph
from meshwright.cost.traced.nodes import NodeCosts
from meshwright.generate.cut import cut_at, read_by_backward
from meshwright.generate.joint import Joint, label
from meshwright.generate.program import sharded_segments
from meshwright.plan import FrontierPoint, Plan
from meshwright.planner.chain.enumerate import TooManyError
from meshwright.planner.memory.options import RematOptions
from meshwright.planner.memory.plans import with_kept
from meshwright.predict import predicted
from meshwright.predict.one_stage import gradients_of
from meshwright.price.overlap import overlapped
from meshwright.remat.curve import RematPoint, in_memory_anyway
from meshwright.remat.inner import inner_options
from meshwright.remat.tail import tail_options
from meshwright.remat.traced import Tracer, traced_for
from meshwright.remat.way import cut_way


def fastest_fitting(
    plan: Plan, program: Program, budget_bytes: int, limit_s: float, most: int, flat: bool
) -> tuple[Plan | None, float]:
    """(the fastest plan of a sharding that fits, None where none is faster than the limit; a lower bound in seconds on
    all of its plans, infinite where all are slower than the limit).

    plan: everything kept.
    limit_s: slower plans are ignored, in seconds.
    most: combinations above which TooManyError is raised, as it is where values may wait on the host.
    flat: every segment runs forward once, and nothing waits on the host.
    """
    ways = RematOptions.of(plan, program, ())
    if ways.curves.offload_options and not flat:
        raise TooManyError
    every, micro = _every_way(plan, program, most), plan.microbatches
    ways = replace(ways, curves=replace(ways.curves, options=every))
    points = [[ways.point(index, kept) for kept in found] for index, found in enumerate(every)]
    nested_s = inf if flat else _nested_s([found[0] for found in points], micro)
    bound_s = nested_s if nested_s < limit_s else inf
    room_bytes = budget_bytes - sum(point.static_bytes for point in ways.points) + sum(gradients_of(plan, program))
    for step_s, picked in _by_step(every, points, micro, room_bytes, limit_s):
        found = predicted(with_kept(plan, picked), program)
        if found.predicted.peak_bytes <= budget_bytes:
            return found, min(bound_s, step_s, found.predicted.step_s)
    return None, bound_s


def _by_step(
    every: Sequence[Sequence[RematPoint]],
    points: Sequence[Sequence[FrontierPoint]],
    microbatches: int,
    room_bytes: int,
    limit_s: float,
) -> list[tuple[float, tuple[RematPoint, ...]]]:
    """Combinations below the limit that may fit, the fastest first."""
    found = []
    for picked, taken in zip(product(*every), product(*points), strict=True):
        if _least_bytes(taken) <= room_bytes:
            found.append((overlapped(taken, microbatches), picked))
    return sorted((one for one in found if one[0] < limit_s), key=lambda one: one[0])


def _least_bytes(points: Sequence[FrontierPoint]) -> int:
    """Lower bound on the peak besides weights and optimizer states; gradients and prefetched weights come on top."""
    held = accumulate(point.resident_bytes for point in points)
    return max(size + point.transient_bytes for size, point in zip(held, points, strict=True))


def _nested_s(points: Sequence[FrontierPoint], microbatches: int) -> float:
    """Lower bound on nested orders: the step with everything kept, and all compute with the shortest forward once more.
    The last segment runs forward once in any order.

    points: everything kept.
    """
    repeated_forward_s = min((point.forward_s for point in points[:-1]), default=inf)
    each_s = sum(point.forward_s + point.backward_s for point in points) + repeated_forward_s
    return max(overlapped(points, microbatches), microbatches * each_s + sum(point.step_s for point in points))


def _every_way(plan: Plan, program: Program, most: int) -> tuple[tuple[RematPoint, ...], ...]:
    """The points of each segment, the one that keeps everything first."""
    device = plan.mesh.device
    costs, traced = NodeCosts(device, plan.compile, plan.mesh), traced_for(device)
    found = []
    for index, graph in enumerate(sharded_segments(program, plan)):
        found.append(tuple(_of_segment(plan, program, index, graph, costs, traced, most)))
        if prod(map(len, found)) > most:
            raise TooManyError
    return tuple(found)


def _of_segment(
    plan: Plan, program: Program, index: int, graph: SegmentGraph, costs: NodeCosts, traced: Tracer, most: int
) -> Iterator[RematPoint]:
    """Points of one segment. Tensors shared with neighbours are not counted, so that bytes are lower bounds."""
    joint = traced(graph)
    held = (*graph.outputs, *(label(value.name) for value in graph.inputs))
    whole = [cut_way(joint, costs, recompute, keep, held) for recompute, keep in _every_cut(joint, most)]
    yield from whole
    if index == len(program.segments) - 1:
        yield from tail_options(program, plan, graph, costs, traced)
    else:
        yield from inner_options(program, plan, index, graph, whole, costs, traced)


def _every_cut(joint: Joint, most: int) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """(recomputed values, additionally kept values) for every set of values that forward can save."""
    standard = [joint.names[node] for node in read_by_backward(joint)]
    anyway = in_memory_anyway(joint)
    names = [name for name in dict.fromkeys(joint.names.values()) if name not in anyway]
    if 1 << len(names) > most:
        raise TooManyError
    known: set[tuple[str, ...]] = set()
    for kept in chain.from_iterable(combinations(names, size) for size in range(len(names), -1, -1)):
        again = tuple(name for name in standard if name not in (*kept, *anyway))
        saved = cut_at(joint, again, tuple(name for name in kept if name not in standard), run=False).saved
        if saved not in known:
            known.add(saved)
            yield tuple(n for n in standard if n not in saved), tuple(n for n in saved if n not in standard)
