"""Checkpoint first, then shard: a rival of `bench/coupling.py`, whose page says what it does.

What is dropped being decided, everything else is the product's own search (`planner.search.mesh_search`): prices and
weights at which shardings are asked for, mixtures of them over instances, chunks of backwards and of the tail.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from meshwright.capture.program import Program
from meshwright.cluster import Cluster
from meshwright.cost.traced.kernels import loaded
from meshwright.cost.traced.nodes import NodeCosts
from meshwright.cost.traced.storage import storage_bytes
from meshwright.generate.cut import cut_at, read_by_backward
from meshwright.generate.joint import Joint
from meshwright.generate.program import sharded_segments
from meshwright.pins.meshes import allowed_meshes
from meshwright.plan import Plan
from meshwright.planner.chain.lagrangian import memory_free_bound_s
from meshwright.planner.memory.options import RematOptions
from meshwright.planner.memory.refine import Options
from meshwright.planner.realize import draft
from meshwright.planner.search.dual_bound import DualBound, best_bound
from meshwright.planner.search.keep_all import Candidate
from meshwright.planner.search.mesh_search import MeshSearch, weighed
from meshwright.planner.sharding.eliminated import Solved
from meshwright.planner.sharding.model import ShardingModel
from meshwright.planner.sharding.segment import SegmentProblem
from meshwright.planner.space.candidates import candidates_on
from meshwright.price.parameter import Setting
from meshwright.price.segment import kept_values
from meshwright.remat.curve import RematPoint, in_memory_anyway, measure
from meshwright.remat.inner import CHUNKS, inner_options
from meshwright.remat.traced import traced_for

ALIKE = 1.02
"""Values whose seconds per byte differ by no more than this are dropped together."""


@dataclass(slots=True)
class Dropped(ShardingModel):
    """A ShardingModel whose segments do not keep what takes at most `most_s` seconds per byte to make again."""

    most_s: float = 0.0

    def solve(self, index: int, price_per_byte: float) -> Solved:
        problem = self.problem(index)
        key = (id(problem), price_per_byte)
        if key not in self._solved:
            plan = problem.prepared
            assert plan is not None, "these segments are small"
            charged = problem.at(price_per_byte, False, self.cap_bytes, self.overlap_weight, self.flight)
            for node, kept in zip(problem.op_nodes, problem.space.op_kept, strict=True):
                where = slice(charged.offsets[node], charged.offsets[node + 1])
                for part in kept:
                    if _drops(part.drop_s, part.bytes, self.most_s):
                        charged.costs[where] += problem.micro * part.drop_s - price_per_byte * self.flight * part.bytes
            found = plan.run(charged.costs)
            self._solved[key] = Solved(problem, charged, self.program.segments[index].graph, found.costs, found)
        return self._solved[key]


def _drops(drop_s: float, sizes: np.ndarray, most_s: float) -> bool:
    return drop_s <= most_s * float(sizes.max())


@dataclass(frozen=True, slots=True)
class Level:
    """What takes at most so many seconds per byte to make again is dropped: that part of all droppable bytes."""

    part: float
    most_s: float


def levels(shardings: ShardingModel) -> list[Level]:
    """Every distinct set that a threshold drops, on the model as it is; values that are nearly alike go together."""
    ratios, sizes = [], []
    for index in range(len(shardings.program.segments)):
        for kept in shardings.problem(index).space.op_kept:
            for part in kept:
                whole = float(part.bytes.max())
                if whole and np.isfinite(part.drop_s):
                    ratios.append(part.drop_s / whole)
                    sizes.append(whole)
    order = np.argsort(ratios)
    share = np.cumsum(np.array(sizes)[order]) / sum(sizes)
    ascending = np.array(ratios)[order]
    found: list[Level] = []
    first_s = -1.0
    for part, most_s in zip(share.tolist(), ascending.tolist(), strict=True):
        if most_s > ALIKE * first_s:
            first_s = most_s
            found.append(Level(part, most_s))
        found[-1] = Level(part, most_s)
    return found


@dataclass(frozen=True, slots=True)
class SearchNode:
    """A set of dropped values on a mesh, with what no sharding that fits is faster than."""

    bound: DualBound
    level: Level
    candidate: Candidate
    microbatches: int


def search_nodes(program: Program, cluster: Cluster, budget: int, axes: int, incumbent_s: float) -> list[SearchNode]:
    found = []
    setting = Setting("adamw", "bf16")
    for candidate in candidates_on(program, allowed_meshes(cluster, (), axes), (), setting, recompute=True):
        for number in candidate.microbatches:
            base = candidate.shardings(number)
            if memory_free_bound_s(base) >= incumbent_s:
                continue
            for level in levels(base):
                bases = weighed(dropping(base, level))
                bound = best_bound(bases, budget, incumbent_s, DualBound(memory_free_bound_s(base), 0.0))
                if bound.seconds < incumbent_s:
                    found.append(SearchNode(bound, level, candidate, number))
    return sorted(found, key=lambda entry: entry.bound.seconds)


def checkpoint_first(
    program: Program, cluster: Cluster, budget: int, axes: int, incumbent_s: float
) -> Iterator[tuple[str, float]]:
    """Seconds of the method's plans that fit; what cannot be faster than `known_s`, or than one before it, is left
    out."""
    for entry in search_nodes(program, cluster, budget, axes, incumbent_s):
        if entry.bound.seconds >= incumbent_s:
            return
        shardings = dropping(entry.candidate.shardings(entry.microbatches), entry.level)
        search = MeshSearch(
            shardings,
            program,
            budget,
            partial(draft, program, cluster),
            incumbent_s,
            partial(offered, program, shardings),
        )
        plan = search.fastest(entry.bound.price)
        if plan is not None:
            incumbent_s = plan.predicted.step_s
            yield f"checkpoint first, {entry.level.part:.0%} dropped", incumbent_s


def offered(program: Program, shardings: Dropped, plan: Plan, ways: RematOptions) -> Options:
    """Of this sharding the one way that drops what was decided; the tail, and the backwards of others, may run in
    chunks as is fastest."""
    device = plan.mesh.device
    costs, traced = NodeCosts(device, False, plan.mesh), traced_for(device)
    made: dict[int, tuple[RematPoint, ...]] = {}
    options: list[tuple[RematPoint, ...]] = []
    graphs = sharded_segments(program, plan)
    for index, graph in enumerate(graphs):
        last = index == len(graphs) - 1
        if id(graph) not in made or last:
            names, ours = dropped_names(shardings.problem(index), shardings.most_s), ways.curves.options[index]
            found = [_dropping(traced(graph), names, costs, like) for like in ours[:1] if like.chunks == 1]
            chunked = inner_options(program, plan, index, graph, found, costs, traced, CHUNKS)
            made[id(graph)] = (*found, *(ours if last else chunked))
        options.append(made[id(graph)])
    return options


def dropped_names(problem: SegmentProblem, most_s: float) -> set[str]:
    """Values of the segment; `op~` stands for what else an op leaves to its backward."""
    space, found = problem.space, set()
    for index, (op, parts) in enumerate(zip(space.graph.ops, space.op_kept, strict=True)):
        if not parts:
            continue
        kept = kept_values(op, space.strategies[index][0], space.values, space.outside, space.mesh)
        names = [space.bases[name] for name, _ in kept]
        names = [f"{op.name}~"] * (len(parts) - len(names)) + names
        for name, part in zip(names, parts, strict=True):
            if _drops(part.drop_s, part.bytes, most_s):
                found.add(name)
    return found


def _dropping(joint: Joint, dropped: set[str], costs: NodeCosts, like: RematPoint) -> RematPoint:
    """The pair cut there; `like`: a way of the same segment, whose bytes are known."""
    standard = {joint.names[node] for node in read_by_backward(joint)}
    again = tuple(sorted(name for name in standard if name in dropped or f"{name.partition('~')[0]}~" in dropped))
    cut = cut_at(joint, again)
    sizes = {name: storage_bytes(node) for node, name in joint.names.items()}
    anyway = in_memory_anyway(joint)
    held = like.resident_bytes
    held += sum(sizes[name] for name in set(cut.saved) - set(like.saved) if name not in anyway)
    held -= sum(sizes[name] for name in set(like.saved) - set(cut.saved) if name not in anyway)
    costs = loaded(joint.module, costs)
    return measure(joint, cut, costs, recompute=again, keep=(), resident_bytes=held, recompute_s=0.0)


def dropping(base: ShardingModel, level: Level) -> Dropped:
    given = (base.program, base.mesh, base.pins, base.setting, True, base.skips)
    return Dropped(*given, overlap_weight=0.0, most_s=level.most_s)
