"""Ways to run any range of segments on a submesh: chains that are best at some price per byte, and what they keep.

A chain is the whole program on one submesh, as `walk` finds it; a range of it is a way to run those segments there,
and what crosses at its ends lies as it does in the chain. Seconds and bytes of a range are differences of sums along
the chain, so ranges cost nothing. At rising *levels* segments keep less and recompute more; between two levels a part
of the range's segments has gone over already.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import inf

import numpy as np

from meshwright.capture.program import Program
from meshwright.cutting import cut_batch
from meshwright.errors import PlanError
from meshwright.layout import Layout
from meshwright.plan import FrontierPoint, ParameterPlan
from meshwright.planner.chain.chains import Chain
from meshwright.planner.chain.lagrangian import chain_at
from meshwright.planner.effort import PRICES
from meshwright.planner.pipeline.meshes import StageMesh
from meshwright.planner.pipeline.op_memory import held_points
from meshwright.planner.sharding.model import Point, ShardingModel
from meshwright.planner.space.long_lived import has_many_alive
from meshwright.predict.pieces import per_microbatch
from meshwright.price.parameter import Setting, local_bytes
from meshwright.simulate import SegmentCost

Floats = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

FORWARD, INPUT, WEIGHT, FIRST, LAST, STEP, STATIC, RESIDENT, HOST, STEP_HOST, RESTORED = range(11)
SUMS = 11
"""The first figures add up along a range; of the two transients after them the largest counts."""


@dataclass(frozen=True, slots=True)
class ShardedChain:
    """A chain on a submesh for a number of micro-batches. sums[level, i]: of segments before i; figures[level, i]: of
    segment i. layouts: of every value that crosses a boundary, as the chain has it."""

    mesh: int
    microbatches: int
    points: tuple[Point, ...]
    sums: Floats
    figures: Floats
    layouts: dict[str, str]

    @property
    def levels(self) -> int:
        return len(self.sums)

    @property
    def key(self) -> tuple[object, ...]:
        """The same for chains that do the same."""
        return (self.figures.tobytes(), *self.layouts.items())

    @property
    def step_s(self) -> float:
        """Of the whole chain, all kept."""
        whole = self.sums[0, -1]
        return float(self.microbatches * whole[:FIRST].sum() + whole[FIRST : STEP + 1].sum())


First = tuple[ShardingModel, Chain, ShardedChain]
"""A chain whose bytes nothing is charged for, and where it was found."""


def sharded_chains(
    program: Program, at: int, stage: StageMesh, setting: Setting, recompute: bool, most_s: float = inf
) -> list[ShardedChain]:
    """Every different chain on this mesh that may be among its best; none where the batch, the pins and the mesh do not
    go together. Segments keep all, or their inputs alone; `with_levels` looks closer. most_s: of the whole program, all
    kept; of a slower mesh one chain is offered."""
    return more_chains(first_chains(program, at, stage, setting, recompute), at, stage, recompute, most_s)


def first_chains(program: Program, at: int, stage: StageMesh, setting: Setting, recompute: bool) -> list[First]:
    """The fastest chains on this mesh if memory were free."""
    small = program.at_batch(cut_batch(program.batch, setting.microbatches)[0])
    free = ShardingModel(small, stage.mesh, stage.pins, setting)
    met: list[First] = []
    for skips in product((True, False), repeat=len(stage.mesh.axes)) if has_many_alive(program) else (None,):
        keeping = free.skipping(skips)
        try:
            chain = chain_at(keeping, 0.0)
        except PlanError:
            continue
        met.append((keeping, chain, _sharded_chain(small, at, stage, chain, recompute)))
        keeping.forget()
    return met


def more_chains(
    met: Sequence[First], at: int, stage: StageMesh, recompute: bool, most_s: float, flight: int = 1
) -> list[ShardedChain]:
    """These, and what is best on this mesh at some prices per byte. flight: micro-batches in flight that all hold what
    backward reads: chains are asked for, too, that keep it all, for which small values are worth more than weights."""
    worst_s = min(most_s, _worst_s([sharded for _, _, sharded in met], stage))
    found: dict[object, ShardedChain] = {}
    for keeping, chain, sharded in met:
        found.setdefault(sharded.key, sharded)
        if sharded.step_s >= worst_s:
            continue
        shardings, flying = keeping.recomputing() if recompute else keeping, keeping.in_flight(flight)
        scale = sharded.step_s / stage.memory_bytes
        chains = [chain, *(chain_at(one, price * scale) for one in (shardings, flying) for price in PRICES)]
        for other in list({tuple(map(id, one.points)): one for one in chains}.values())[1:]:
            made = _sharded_chain(keeping.program, at, stage, other, recompute)
            found.setdefault(made.key, made)
    return list(found.values())


def _worst_s(firsts: Sequence[ShardedChain], stage: StageMesh) -> float:
    """What a chain that nothing is charged for has to be faster than, so that others with its skips may be worth a
    look: they save bytes and take longer. Endless where bytes are of use."""
    quickest = min(firsts, key=lambda sharded: sharded.step_s, default=None)
    if quickest is None:
        return inf
    whole = quickest.sums[0, -1]
    held = whole[STATIC] + quickest.microbatches * whole[RESIDENT] + quickest.figures[0, :, SUMS:].max()
    return quickest.step_s if held <= stage.memory_bytes else inf


def _sharded_chain(program: Program, at: int, stage: StageMesh, chain: Chain, recompute: bool) -> ShardedChain:
    rows: dict[int, list[list[float]]] = {}
    for point in chain.points:
        if id(point) not in rows:
            rows[id(point)] = [_figures(point.point, chain.microbatches)]
            if recompute:
                graph = program.graphs[point.point.choice.graph].at(program.batch)
                inputs = zip(graph.inputs, point.point.choice.inputs, strict=True)
                kept = sum(
                    local_bytes(value.type.sizes, value.type.itemsize, Layout.parse(text), stage.mesh)
                    for value, text in inputs
                )
                rows[id(point)].append(_recomputing(point.point, chain.microbatches, kept, point.point.forward_s))
    layouts: dict[str, str] = {}
    for segment, point in zip(program.segments, chain.points, strict=True):
        layouts.update(zip(segment.outputs, point.point.choice.outputs, strict=True))
    return _summed(at, chain.microbatches, chain.points, rows, layouts)


def with_remat_levels(
    sharded: ShardedChain, program: Program, stage: StageMesh, method: str = "auto", compiled: bool = False
) -> ShardedChain:
    """The offer with what its segments could keep at a few prices per byte; `program` at one micro-batch.

    method: of activation checkpointing; `full` and `selective` leave one level each.
    """
    levels = {"full": slice(-1, None), "selective": slice(1, 2)}.get(method, slice(None))
    points = {id(point): point.point for point in sharded.points}
    price = sum(p.forward_s for p in points.values()) / max(1, sum(p.resident_bytes for p in points.values()))
    rows = {}
    for key, point in points.items():
        graph = program.graphs[point.choice.graph].at(program.batch)
        found = held_points(graph, point.choice, stage.mesh, [price * ratio for ratio in PRICES], compiled)
        rows[key] = [_figures(point, sharded.microbatches)]
        rows[key] += [_recomputing(point, sharded.microbatches, one.resident_bytes, one.recompute_s) for one in found]
        rows[key] = rows[key][levels]
    return _summed(sharded.mesh, sharded.microbatches, sharded.points, rows, sharded.layouts)


def _summed(
    at: int, microbatches: int, points: tuple[Point, ...], rows: dict[int, list[list[float]]], layouts: dict[str, str]
) -> ShardedChain:
    figures = np.array([rows[id(point)] for point in points]).transpose(1, 0, 2)
    sums = np.zeros((len(figures), len(points) + 1, SUMS))
    np.cumsum(figures[:, :, :SUMS], axis=1, out=sums[:, 1:])
    return ShardedChain(at, microbatches, points, sums, figures, layouts)


def _recomputing(point: FrontierPoint, microbatches: int, kept: int, gather_per_use_s: float) -> list[float]:
    """A segment that keeps so much; what is dropped is there again while its backward runs."""
    row = _figures(point, microbatches)
    dropped = max(0, point.resident_bytes - kept)
    row[INPUT] += gather_per_use_s
    row[HOST] += point.forward_host_s * (gather_per_use_s / point.forward_s if point.forward_s else 0.0)
    row[RESIDENT] -= dropped
    row[RESTORED] = dropped
    row[-1] += dropped
    return row


def _figures(point: FrontierPoint, microbatches: int) -> list[float]:
    cost = per_microbatch(point, microbatches)
    return [
        cost.forward_s, cost.backward_input_s, cost.backward_weight_s,
        cost.gather_params_s, cost.reduce_grads_s, cost.step_s,
        cost.static_bytes, cost.resident_bytes,
        point.forward_host_s + point.backward_host_s, point.step_host_s, 0.0,
        cost.forward_transient_bytes, cost.backward_transient_bytes,
    ]  # fmt: skip


def hosted(figures: Floats) -> Floats:
    """Rows whose device waits for its host take what the host needs."""
    found = figures.copy()
    device = figures[:, :FIRST].sum(axis=1)
    slower = np.maximum(1.0, figures[:, HOST] / np.maximum(device, 1e-30))
    found[:, :FIRST] *= slower[:, None]
    found[:, STEP] = np.maximum(figures[:, STEP], figures[:, STEP_HOST])
    return found


def cost_of(figures: Sequence[float], overlaps: bool) -> SegmentCost:
    """overlaps: gathers and reductions overlap compute."""
    (
        forward_s,
        input_s,
        weight_s,
        gather_params_s,
        reduce_grads_s,
        step_s,
        static,
        resident,
        _,
        _,
        restored,
        early,
        late,
    ) = figures
    sizes = (round(static), round(resident), round(early), round(late))
    seconds = (
        forward_s,
        input_s,
        weight_s,
        gather_params_s,
        reduce_grads_s,
        step_s,
        gather_params_s + reduce_grads_s if overlaps else 0.0,
    )
    return SegmentCost(*seconds, *sizes, restored_bytes=round(restored))


def tied_weights(program: Program) -> dict[str, tuple[int, ...]]:
    """Weights that several segments read, and which."""
    counts = Counter(name for segment in program.segments for name in dict.fromkeys(segment.params))
    return {name: program.uses_of(name) for name, count in counts.items() if count > 1}


def parameter_of(program: Program, sharded: ShardedChain, name: str, index: int) -> ParameterPlan:
    """What the chain decides for a parameter that segment `index` reads."""
    segment = program.segments[index]
    local = program.graphs[segment.graph].params[segment.params.index(name)].name
    return sharded.points[index].parameters[local]
