"""Selection problems that the planner makes of our own models: the segment with most ops of each, on two meshes.

Without a row, and with one: what is held must fit halfway between what the fastest choice holds and the least any does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from meshwright.capture import capture
from meshwright.capture.program import Program
from meshwright.cluster import load_cluster
from meshwright.models.reference import parse_reference
from meshwright.pins.pins import Pins
from meshwright.planner.sharding.model import ShardingModel
from meshwright.planner.sharding.segment import SegmentProblem
from meshwright.price.parameter import Setting
from meshwright.select import Problem, solve
from meshwright.select.tables import tables_plan

# Two layers of each: a segment's problem does not depend on how often it is repeated.
MODELS = {
    "gpt": "gpt?layers=2",
    "llama": "llama3-8b?layers=2",
    "moe": "moe?layers=2",
    "t5": "t5?layers=2",
    "resnet": "resnet",
}
MESHES = {"8": ("dgx-h100", (8,)), "4x4": ("dgx-h100:2", (4, 4))}
BATCH = 64


def problems() -> Iterator[Problem]:
    """Named model-mesh, and model-mesh-memory for those with a row."""
    for family, reference in MODELS.items():
        program = _program(reference)
        for mesh, place in MESHES.items():
            made = largest_segment(program, *place)
            free = replace(made.problem, names=(), name=f"{family}-{mesh}")
            yield free
            yield with_memory(free, made.held)


def segment_times() -> Iterator[dict[str, Any]]:
    """CPU milliseconds for a llama block: tables over its boundary prepared and filled, and a solve; least of 20."""
    program = _program(MODELS["llama"])
    for mesh, place in {"8": MESHES["8"], "8x8": ("dgx-h100:8", (8, 8))}.items():
        made = largest_segment(program, *place)
        problem, kept = made.problem, [side.node for side in made.boundary]
        prepared = tables_plan(problem, kept)
        yield {
            "instance": f"llama block on {mesh}",
            "nodes": problem.nodes,
            "options": len(problem.costs),
            "entries": prepared.entries,
            "prepare_ms": _least_ms(tables_plan, problem, kept),
            "run_ms": _least_ms(prepared.run, problem.costs),
            "solve_ms": _least_ms(solve, problem),
        }


def _least_ms(call: Callable[..., object], *arguments: object) -> float:
    found = []
    for _ in range(20):
        began = time.process_time()
        call(*arguments)
        found.append(time.process_time() - began)
    return round(1e3 * min(found), 2)


def _program(reference: str) -> Program:
    model, batch, loss = parse_reference(reference).meta(BATCH)
    return capture(model, batch, loss=loss) if loss is not None else capture(model, batch)


def largest_segment(program: Program, cluster: str, shape: tuple[int, ...]) -> SegmentProblem:
    """The Problem of the segment with most ops."""
    shardings = ShardingModel(program, load_cluster(cluster).mesh(shape), Pins(), Setting())
    largest = max(program.segments, key=lambda segment: len(program.graph(segment).ops))
    return SegmentProblem(shardings.space(largest))


def with_memory(problem: Problem, held: np.ndarray) -> Problem:
    """One row for all that is held, with a limit that binds."""
    choice = np.array(solve(problem).choice)
    frugal = np.array(solve(replace(problem, costs=held, edge_costs=_allowed(problem.edge_costs))).choice)
    most, least = (float(held[problem.offsets[:-1] + each].sum()) for each in (choice, frugal))
    some = np.flatnonzero(held)
    return replace(
        problem,
        limits=np.array([np.round((most + least) / 2)]),
        use_option=some,
        use_begin=np.zeros(len(some), dtype=np.int64),
        use_end=np.ones(len(some), dtype=np.int64),
        use_bytes=held[some],
        name=f"{problem.name}-memory",
    )


def _allowed(costs: np.ndarray) -> np.ndarray:
    """Only which pairs are allowed."""
    return np.where(np.isinf(costs), np.inf, 0.0)
