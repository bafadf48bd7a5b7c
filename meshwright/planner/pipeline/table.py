"""Table: every range of segments on every submesh as rows of numbers, for the dynamic programme over stages.

A range is pruned where no pipeline within the time limit has it: because its own work takes longer, or because the
other segments take longer on the devices that are left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from meshwright.capture.program import Program
from meshwright.layout import Layout
from meshwright.planner.pipeline.meshes import StageMesh, SubmeshLinks
from meshwright.planner.pipeline.range_figures import hidden_s, largest_transients, undominated
from meshwright.planner.pipeline.sharded_chains import (
    FIRST,
    LAST,
    RESIDENT,
    RESTORED,
    STATIC,
    STEP,
    SUMS,
    Floats,
    ShardedChain,
    cost_of,
    hosted,
    tied_weights,
)
from meshwright.planner.stages.grouping import grouped
from meshwright.planner.stages.options import Ints, StageOptions
from meshwright.planner.stages.problem import StagePoint
from meshwright.price.handover import Rate, inner_rate, least_s
from meshwright.price.parameter import Setting
from meshwright.price.tied_replica import TiedReplicaPrice, tied_replica_price

PARTS = 4
"""Mixed ranges between two levels, of one range: the first quarter, half, ... of its segments are at the higher one."""


@dataclass(frozen=True, slots=True)
class Boundary:
    """Values that are alive at a cut.

    shapes: at one micro-batch.
    itemsizes: bytes of one element.
    grads: whether a gradient is sent back.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    itemsizes: tuple[int, ...]
    grads: tuple[bool, ...]

    @property
    def bytes(self) -> tuple[int, ...]:
        return tuple(prod(shape) * size for shape, size in zip(self.shapes, self.itemsizes, strict=True))


def boundaries(program: Program) -> list[Boundary]:
    """The boundary at every cut from 0 on. program: at the batch of one micro-batch."""
    made: dict[str, tuple[tuple[int, ...], int, bool]] = {}
    last: dict[str, int] = {}
    for index, segment in enumerate(program.segments):
        values = program.graphs[segment.graph].at(program.batch).values()
        for local, name in zip(program.graphs[segment.graph].outputs, segment.outputs, strict=True):
            value = values[local]
            made[name] = (value.type.sizes, value.type.itemsize, value.grad)
        last.update((name, index) for name in segment.inputs)
    found = []
    alive: list[str] = []
    for cut in range(len(program.segments) + 1):
        new = program.segments[cut - 1].outputs if cut else ()
        alive = [name for name in (*alive, *new) if cut <= last.get(name, -1)]
        types = [made[name] for name in alive]
        sizes, grads = tuple(size for _, size, _ in types), tuple(grad for _, _, grad in types)
        found.append(Boundary(tuple(alive), tuple(shape for shape, _, _ in types), sizes, grads))
    return found


class Table:
    """The rows of all chains for one number of micro-batches.

    program, setting: at one micro-batch.
    found: chains of all submeshes.
    groups: stages may be cut only between so many groups of segments; anywhere unless given.
    layers: segments of each stage, where they are pinned.
    """

    def __init__(
        self,
        program: Program,
        meshes: Sequence[StageMesh],
        found: Sequence[ShardedChain],
        submesh_links: SubmeshLinks,
        setting: Setting,
        groups: int | None = None,
        layers: Sequence[int] | None = None,
    ) -> None:
        self.program, self.meshes, self.sharded_chains = program, meshes, found
        self.submesh_links, self.setting = submesh_links, setting
        self.total = submesh_links.cluster.device_count
        self.boundaries = boundaries(program)
        self.microbatches = setting.microbatches
        self.cuts = np.arange(len(program.segments) + 1)
        if layers is not None:
            self.cuts = np.cumsum([0, *layers])
        elif groups is not None:
            traffic = [float(sum(here.bytes)) for here in self.boundaries]
            self.cuts = np.array(grouped(np.diff(self.least_work).tolist(), traffic, groups))

    @cached_property
    def least_work(self) -> Floats:
        """Device-seconds of a micro-batch in all segments before each, at the least of all chains."""
        ranks = np.array([self.meshes[sharded.mesh].ranks for sharded in self.sharded_chains])
        work = np.array([sharded.figures[0, :, :FIRST].sum(axis=1) for sharded in self.sharded_chains])
        return np.concatenate([[0.0], np.cumsum((work * ranks[:, None]).min(axis=0))])

    def options(self, limit_s: float, interleaved: bool = False) -> StageOptions | None:
        """The rows of all ranges that a pipeline within `limit_s` may have.

        interleaved: ranges are runs of stages with several runs each, on equal submeshes.
        """
        blocks: list[_Rows] = []
        for number, sharded in enumerate(self.sharded_chains):
            begin, end = self._ranges(sharded, limit_s, interleaved)
            if len(begin):
                blocks.append(self._rows(number, sharded, begin, end))
        if not blocks:
            return None
        columns = {name: np.concatenate([getattr(block, name) for block in blocks]) for name in _Rows.__slots__}
        order = np.lexsort((columns["figures"][:, 0], columns["end"], columns["port"], columns["begin"]))
        columns = {name: column[order] for name, column in columns.items()}
        figures: Floats = columns["figures"]
        port: Ints = columns["port"]
        where = np.stack([columns["begin"], port, columns["end"]], axis=1)
        limits = np.array([float(self.meshes[sharded.mesh].memory_bytes) for sharded in self.sharded_chains])
        mesh = np.array([sharded.mesh for sharded in self.sharded_chains])
        return StageOptions(
            points=_Points(self, columns),
            begin=columns["begin"],
            end=columns["end"],
            mesh=mesh[port],
            enter=port,
            leave=port,
            group=np.cumsum(np.any(np.diff(where, axis=0, prepend=-1), axis=1)),
            forward_s=figures[:, 0],
            input_s=figures[:, 1],
            weight_s=figures[:, 2],
            fixed_s=figures[:, FIRST : STEP + 1].sum(axis=1) - hidden_s(figures, interleaved),
            static_bytes=figures[:, STATIC],
            held_bytes=figures[:, STATIC] + figures[:, SUMS:].max(axis=1),
            resident_bytes=figures[:, RESIDENT],
            restored_bytes=figures[:, RESTORED],
            limit_bytes=limits[port],
            enters=tuple((sharded.mesh, index) for index, sharded in enumerate(self.sharded_chains)),
            crossing_s=self.crossing_s,
        )

    def _ranges(self, sharded: ShardedChain, limit_s: float, interleaved: bool) -> tuple[Ints, Ints]:
        """(begin, end) of ranges, as places among the cuts."""
        places = np.triu_indices(len(self.cuts), 1)
        begin, end = self.cuts[places[0]], self.cuts[places[1]]
        sums, ranks = sharded.sums[0], self.meshes[sharded.mesh].ranks
        own = sums[end] - sums[begin]
        work_s = self.microbatches * own[:, :FIRST].sum(axis=1) + own[:, FIRST : STEP + 1].sum(axis=1)
        others = self.least_work[-1] - (self.least_work[end] - self.least_work[begin])
        others_s = self.microbatches * others / max(1, self.total - ranks)
        keep = (work_s <= limit_s) & (end - begin < len(self.program.segments))
        if interleaved:
            keep &= self.total % ranks == 0
        else:
            keep &= others_s <= limit_s
        return places[0][keep], places[1][keep]

    def _rows(self, port: int, sharded: ShardedChain, first: Ints, last: Ints) -> _Rows:
        """Rows of a chain: all levels of all ranges and PARTS - 1 mixtures with the next, if fitting and undominated.

        first, last: of ranges, as places among the cuts.
        """
        begin, end = self.cuts[first], self.cuts[last]
        tied = self._tied_replicas(sharded, begin, end)
        limit = self.meshes[sharded.mesh].memory_bytes
        stops = [
            (level, part)
            for level in range(sharded.levels)
            for part in range(PARTS if level + 1 < sharded.levels else 1)
        ]
        switches = np.stack([begin + (end - begin) * part // PARTS for _, part in stops])
        figures = np.stack(
            [
                hosted(self._figures(sharded, begin, switch, end, level) + tied)
                for (level, _), switch in zip(stops, switches, strict=True)
            ]
        )
        fits = figures[..., STATIC : RESIDENT + 1].sum(axis=2) + figures[..., SUMS:].max(axis=2) <= limit
        stop, place = undominated(figures, fits, self.microbatches)
        return _Rows(np.full(len(stop), port), first[place], last[place], figures[stop, place])

    def _figures(self, sharded: ShardedChain, begin: Ints, switch: Ints, end: Ints, level: int) -> Floats:
        upper = min(level + 1, sharded.levels - 1)
        sums = (
            sharded.sums[upper, switch]
            - sharded.sums[upper, begin]
            + sharded.sums[level, end]
            - sharded.sums[level, switch]
        )
        most = np.maximum(
            largest_transients(sharded, upper, begin, switch), largest_transients(sharded, level, switch, end)
        )
        return np.concatenate([sums, most], axis=1)

    def _tied_replicas(self, sharded: ShardedChain, begin: Ints, end: Ints) -> Floats:
        """Figures that tied replicas add to ranges: weights of an earlier stage, and their gradients, once a step."""
        found = np.zeros((len(begin), SUMS + 2))
        stage = self.meshes[sharded.mesh]
        for name, users in tied_weights(self.program).items():
            later = np.array(users[1:])
            reads = ((later[None] >= begin[:, None]) & (later[None] < end[:, None])).any(axis=1)
            replica = reads & (begin > users[0])
            if replica.any():
                price = self._tied_replica(sharded, stage, name, int(later[0]))
                found[replica, FIRST] += price.gather_params_s
                found[replica, LAST] += price.reduce_grads_s
                found[replica, STATIC] += price.held_bytes
        return found

    def _tied_replica(self, sharded: ShardedChain, stage: StageMesh, name: str, user: int) -> TiedReplicaPrice:
        """The price of a tied replica, as if its owner were a stage like this one."""
        segment = self.program.segments[user]
        value = self.program.graphs[segment.graph].params[segment.params.index(name)]
        compute = Layout.parse(sharded.points[user].point.choice.parameters[value.name])
        rate = self._own_rate(stage)
        return tied_replica_price(value, compute, stage.mesh, (stage.mesh, compute), self.setting, rate, rate)

    def _own_rate(self, stage: StageMesh) -> Rate:
        return (
            self.submesh_links.between_classes(stage, stage)
            if 2 * stage.ranks <= self.total
            else inner_rate(stage.mesh)
        )

    @cached_property
    def crossing_s(self) -> Floats:
        """Seconds of handing over, there and back, by (cut, chain left, chain entered); a closed form."""
        count = len(self.sharded_chains)
        found = np.zeros((len(self.cuts), count, count))
        known: dict[object, Floats] = {}
        for cut in range(1, len(self.cuts) - 1):
            here = self.boundaries[self.cuts[cut]]
            layouts = tuple(tuple(sharded.layouts[name] for name in here.names) for sharded in self.sharded_chains)
            key = (here.shapes, here.itemsizes, here.grads, layouts)
            if key not in known:
                known[key] = self._crossing(here, layouts)
            found[cut] = known[key]
        return found

    def _crossing(self, here: Boundary, layouts: Sequence[tuple[str, ...]]) -> Floats:
        meshes = [self.meshes[sharded.mesh] for sharded in self.sharded_chains]
        pieces = [
            [Layout.parse(text).shard_factor(stage.mesh.sizes) for text in own]
            for stage, own in zip(meshes, layouts, strict=True)
        ]
        inner = [inner_rate(stage.mesh) for stage in meshes]
        found = np.zeros((len(meshes), len(meshes)))
        for i, one in enumerate(meshes):
            for j, other in enumerate(meshes):
                if one.ranks + other.ranks > self.total:
                    continue
                rate = self.submesh_links.between_classes(one, other)
                for size, grad, cut_i, cut_j in zip(here.bytes, here.grads, pieces[i], pieces[j], strict=True):
                    found[i, j] += least_s(size, one.ranks, other.ranks, cut_j, rate, inner[j])
                    if grad:
                        found[i, j] += least_s(size, other.ranks, one.ranks, cut_i, rate, inner[i])
        return found


@dataclass(frozen=True, slots=True)
class _Rows:
    port: Ints
    begin: Ints
    end: Ints
    figures: Floats


class _Points(Sequence[StagePoint]):
    """Rows as StagePoints, made on access."""

    def __init__(self, table: Table, columns: dict[str, np.ndarray]) -> None:
        self.table, self.columns = table, columns

    def __len__(self) -> int:
        return len(self.columns["port"])

    def __getitem__(self, index: int) -> StagePoint:  # type: ignore[override]
        port = int(self.columns["port"][index])
        sharded = self.table.sharded_chains[port]
        overlaps = self.table.meshes[sharded.mesh].ranks > 1
        return StagePoint(cost_of(self.columns["figures"][index].tolist(), overlaps), port, port, sharded)
