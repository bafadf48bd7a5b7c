"""ShardedChain: the whole program sharded on one submesh, of which every range of segments may be a stage.

A chain is the shortest path at some price per byte (`chain.shortest_path`). Its range [i, j) runs these segments as
the chain does, with the boundary layouts of the chain. Seconds and bytes of a range are differences of prefix sums, so
that ranges cost nothing. A chain has several rematerialisation *levels*, which keep less and less.
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
from meshwright.planner.pipeline.op_memory import remat_levels
from meshwright.planner.sharding.model import Point, ShardingModel
from meshwright.planner.space.long_lived import has_many_alive
from meshwright.predict.pieces import per_microbatch
from meshwright.price.parameter import Setting, local_bytes
from meshwright.simulate import SegmentCost

Floats = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

FORWARD, INPUT, WEIGHT, FIRST, LAST, STEP, STATIC, RESIDENT, HOST, STEP_HOST, RESTORED = range(11)
SUMS = 11
"""Columns before this one add up along a range. Of the two transients after them a range has the largest."""


@dataclass(frozen=True, slots=True)
class ShardedChain:
    """A chain on a submesh at a number of micro-batches.

    mesh: place of the class of submeshes.
    points: of each segment.
    sums: [level, i]: figures of all segments before i.
    figures: [level, i]: figures of segment i, in the columns FORWARD to RESTORED and two transients.
    layouts: of every value that crosses a boundary.
    """

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
        """Equal for chains with the same figures and layouts."""
        return (self.figures.tobytes(), *self.layouts.items())

    @property
    def step_s(self) -> float:
        """The step of the whole chain on its submesh, everything kept."""
        whole = self.sums[0, -1]
        return float(self.microbatches * whole[:FIRST].sum() + whole[FIRST : STEP + 1].sum())


First = tuple[ShardingModel, Chain, ShardedChain]
"""A shortest path at price zero per byte, with the model it was found in."""


def sharded_chains(
    program: Program, at: int, stage: StageMesh, setting: Setting, recompute: bool, most_s: float = inf
) -> list[ShardedChain]:
    """Different chains on a mesh, at several prices per byte; none where batch, pins and mesh contradict each other.

    Levels are two: everything kept, and inputs alone. `with_remat_levels` refines them.
    at: place of the mesh among the classes of submeshes.
    recompute: segments may recompute.
    most_s: a mesh whose fastest chain takes longer has this chain alone.
    """
    model = sharding_model(program, stage, setting)
    return more_chains(first_chains(model, at, stage, recompute), at, stage, recompute, most_s)


def sharding_model(program: Program, stage: StageMesh, setting: Setting) -> ShardingModel:
    """The shardings of a micro-batch on a mesh."""
    small = program.at_batch(cut_batch(program.batch, setting.microbatches)[0])
    return ShardingModel(small, stage.mesh, stage.pins, setting)


def first_chains(free: ShardingModel, at: int, stage: StageMesh, recompute: bool) -> list[First]:
    """The fastest chains on a mesh without a memory limit."""
    small = free.program
    met: list[First] = []
    for skips in product((True, False), repeat=len(stage.mesh.axes)) if has_many_alive(small) else (None,):
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
    """The first chains, and the shortest paths at the PRICES per byte.

    flight: micro-batches in flight. Paths are asked for with activations charged so many times, too.
    """
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
    """The step above which a first chain is not followed to higher prices per byte, which save bytes and take longer.

    Infinite where the fastest chain does not fit, so that bytes matter.
    """
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
    """The chain with one rematerialisation level for each of a few prices per byte.

    program: at the batch of one micro-batch.
    method: of activation checkpointing; `full` and `selective` leave one level each.
    """
    levels = {"full": slice(-1, None), "selective": slice(1, 2)}.get(method, slice(None))
    points = {id(point): point.point for point in sharded.points}
    price = sum(p.forward_s for p in points.values()) / max(1, sum(p.resident_bytes for p in points.values()))
    rows = {}
    for key, point in points.items():
        graph = program.graphs[point.choice.graph].at(program.batch)
        found = remat_levels(graph, point.choice, stage.mesh, [price * ratio for ratio in PRICES], compiled)
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


def _recomputing(point: FrontierPoint, microbatches: int, kept: int, recompute_s: float) -> list[float]:
    """Figures of a segment that keeps so many bytes, and restores the rest while its backward runs."""
    row = _figures(point, microbatches)
    dropped = max(0, point.resident_bytes - kept)
    row[INPUT] += recompute_s
    row[HOST] += point.forward_host_s * (recompute_s / point.forward_s if point.forward_s else 0.0)
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
    """Figures in which a device that waits for its host takes the host's seconds."""
    found = figures.copy()
    device = figures[:, :FIRST].sum(axis=1)
    slower = np.maximum(1.0, figures[:, HOST] / np.maximum(device, 1e-30))
    found[:, :FIRST] *= slower[:, None]
    found[:, STEP] = np.maximum(figures[:, STEP], figures[:, STEP_HOST])
    return found


def cost_of(figures: Sequence[float], overlaps: bool) -> SegmentCost:
    """One row of figures as a SegmentCost. overlaps: gathers and reductions overlap compute."""
    forward_s, input_s, weight_s, gather_s, reduce_s, step_s = figures[:STATIC]
    static, resident, forward_bytes, backward_bytes = map(round, (figures[STATIC], figures[RESIDENT], *figures[SUMS:]))
    async_s = gather_s + reduce_s if overlaps else 0.0
    sizes = static, resident, forward_bytes, backward_bytes
    seconds = forward_s, input_s, weight_s, gather_s, reduce_s, step_s, async_s
    return SegmentCost(*seconds, *sizes, restored_bytes=round(figures[RESTORED]))


def tied_weights(program: Program) -> dict[str, tuple[int, ...]]:
    """Weights that several segments read, with these segments."""
    counts = Counter(name for segment in program.segments for name in dict.fromkeys(segment.params))
    return {name: program.uses_of(name) for name, count in counts.items() if count > 1}


def parameter_of(program: Program, sharded: ShardedChain, name: str, index: int) -> ParameterPlan:
    """The chain's storage and layouts of a parameter that segment `index` reads."""
    segment = program.segments[index]
    local = program.graphs[segment.graph].params[segment.params.index(name)].name
    return sharded.points[index].parameters[local]
