"""Whole plans of one stage by brute force, as they run: communication beside compute, every set of values that may be
kept, every mesh, every number of micro-batches.

A sharding's step is the clock's. Recomputing adds to it, so of a sharding that is no faster than what is known nothing
else is looked at; of the others every set of kept values is predicted, until none is left.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations, product
from math import inf, prod

from plan_oracle import Boundary, Oracle

from meshwright.capture.program import Program
from meshwright.cluster import Cluster
from meshwright.cluster.enumerate import meshes
from meshwright.generate.cut import cut_at, read_by_backward
from meshwright.generate.joint import Joint
from meshwright.generate.program import sharded_segments
from meshwright.pins.pins import Pins
from meshwright.plan import Choice, ParameterPlan, Plan
from meshwright.planner.chain.chains import Chain
from meshwright.planner.realize import draft
from meshwright.planner.sharding.model import Point, ShardingModel
from meshwright.predict import predict
from meshwright.predict.ways import with_choices
from meshwright.price.overlap import overlapped
from meshwright.price.parameter import Setting, chain_uses
from meshwright.price.segment import price_segment
from meshwright.profile.lookup import lookup_segments
from meshwright.remat.curve import in_memory_anyway
from meshwright.remat.traced import traced_for

MOST_ASKED = 400
"""Predictions of one model."""

MOST_CHAINS = 300_000
"""That are made of one segment more."""

MOST_VALUES = 8
"""That a segment may keep or recompute."""

Labels = list[tuple[float, tuple[Point, ...]]]
"""Seconds of compute so far, and the points."""


class TooManyError(Exception):
    """More plans than are enumerated."""


@dataclass(frozen=True)
class Sharding:
    """step_s: everything kept."""

    step_s: float
    chain: Chain
    shardings: ShardingModel


def best_step_s(
    program: Program, cluster: Cluster, numbers: Sequence[int], budget: float, limit_s: float, most: int
) -> float:
    """The shortest step of all plans that fit, infinite where none takes at most `limit_s`.

    numbers: of micro-batches.
    most: sets of kept values, above which TooManyError is raised.
    """
    best_s, found_s, asked = limit_s * (1 + 1e-9), inf, 0
    for sharding in sorted(_shardings(program, cluster, numbers, best_s), key=lambda one: one.step_s):
        if sharding.step_s >= best_s:
            break
        plan = draft(program, cluster, sharding.chain, sharding.shardings)
        if plan.predicted.static_bytes > budget:
            continue
        for chosen in every_kept(plan, program, most):
            predicted, asked = predict(with_choices(plan, chosen), program), asked + 1
            if predicted.peak_bytes <= budget and predicted.step_s < best_s:
                best_s = found_s = predicted.step_s
            if best_s <= sharding.step_s * (1 + 1e-12):
                break  # recomputing only takes longer
            if asked > MOST_ASKED:
                raise TooManyError
    return found_s


def best_kept_s(program: Program, cluster: Cluster, number: int, budget: float, limit_s: float) -> float:
    """`best_step_s` with everything kept, on a mesh of one axis in so many micro-batches."""
    oracle = Whole(program.at_batch(program.batch // number), cluster.mesh((2,)), Setting().cut(program.batch, number))
    shardings = sorted(_of(oracle, limit_s * (1 + 1e-9)), key=lambda one: one.step_s)
    for sharding in shardings[:MOST_ASKED]:
        plan = draft(program, cluster, sharding.chain, sharding.shardings)
        if plan.predicted.static_bytes <= budget and predict(plan, program).peak_bytes <= budget:
            return sharding.step_s
    if len(shardings) > MOST_ASKED:
        raise TooManyError
    return inf


def check_size(program: Program, cluster: Cluster, numbers: Sequence[int], most: int) -> None:
    """Raises TooManyError where a mesh has more choices than are enumerated, before anything is planned."""
    if any(oracle.size() > most for oracle in _oracles(program, cluster, numbers)):
        raise TooManyError


def _oracles(program: Program, cluster: Cluster, numbers: Sequence[int]) -> Iterator[Whole]:
    for mesh in meshes(cluster, max_axes=3):
        for number in numbers:
            yield Whole(program.at_batch(program.batch // number), mesh, Setting().cut(program.batch, number))


def _shardings(program: Program, cluster: Cluster, numbers: Sequence[int], limit_s: float) -> Iterator[Sharding]:
    for oracle in _oracles(program, cluster, numbers):
        yield from _of(oracle, limit_s)


def _of(oracle: Whole, limit_s: float) -> Iterator[Sharding]:
    number = oracle.setting.microbatches
    shardings = ShardingModel(oracle.program, oracle.mesh, Pins(), oracle.setting)
    for points in oracle.chains(limit_s):
        step_s = overlapped([point.point for point in points], number)
        if step_s < limit_s:
            yield Sharding(step_s, Chain(points, (), number), shardings)


@dataclass(frozen=True)
class Whole(Oracle):
    """With what every segment does, not only with figures."""

    def chains(self, limit_s: float) -> Iterator[tuple[Point, ...]]:
        """All whose compute takes less than a limit."""
        alive: dict[Boundary, Labels] = {(): [(0.0, ())]}
        for index in range(len(self.program.segments)):
            here = self._offered(index, limit_s)
            if sum(map(len, alive.values())) * sum(map(len, here.values())) > MOST_CHAINS:
                raise TooManyError
            following: dict[Boundary, Labels] = {}
            for (before, labels), (boundary, offered) in product(alive.items(), here.items()):
                after = self._after(index, dict(before), dict(boundary))
                if after is not None:
                    joined = (
                        (seconds + more_s, (*points, point)) for seconds, points in labels for more_s, point in offered
                    )
                    following.setdefault(after, []).extend(one for one in joined if one[0] < limit_s)
            alive = following
        for labels in alive.values():
            yield from (points for _, points in labels)

    def _offered(self, index: int, limit_s: float) -> dict[Boundary, list[tuple[float, Point]]]:
        made, micro = self._space(index), self.setting.microbatches
        named = {op.name: {one.text: one for one in of} for op, of in made.each()}
        found: dict[Boundary, list[tuple[float, Point]]] = {}
        for layouts, choice in self._choices(index, made):
            known = {name: named[name][text] for name, text in choice.strategies.items()}
            alone_s = price_segment(made.graph, choice, {}, self.mesh, self.setting, {}, known).seconds(micro)
            if alone_s >= limit_s:
                continue
            for texts, plans in self._storages(index, choice):
                charged = {
                    value.name: self._count(self.program.uses_of(name))
                    for value, name in zip(made.graph.params, self.program.segments[index].params, strict=True)
                    if self.program.uses_of(name)[0] == index
                }
                point = price_segment(made.graph, choice, plans, self.mesh, self.setting, charged, known)
                key = tuple(sorted({**layouts, **texts}.items()))
                found.setdefault(key, []).append((alone_s, Point(point, plans)))
        return found

    def _count(self, users: Sequence[int]) -> float:
        lookups = lookup_segments(self.program)
        return chain_uses(users, len(self.program.segments), self.setting.microbatches, lookups)

    def _storages(self, index: int, choice: Choice) -> Iterator[tuple[dict[str, str], dict[str, ParameterPlan]]]:
        """Every storage of every weight; of tied ones in writing, by name."""
        segment, made = self.program.segments[index], self._space(index)
        options = [
            [plan for plan in self._plans(name, made, value.name) if plan.compute == choice.parameters[value.name]]
            for value, name in zip(made.graph.params, segment.params, strict=True)
        ]
        for plans in product(*options):
            tied = zip(segment.params, plans, strict=True)
            texts = {name: str(plan) for name, plan in tied if len(self.program.uses_of(name)) > 1}
            yield texts, {value.name: plan for value, plan in zip(made.graph.params, plans, strict=True)}


def every_kept(plan: Plan, program: Program, most: int) -> Iterator[list[Choice]]:
    """A Choice for every segment, for all that may be kept and recomputed."""
    traced = traced_for(plan.mesh.device)
    segments = [traced(graph) for graph in sharded_segments(program, plan)]
    ways = [_ways(joint, plan.choice(index)) for index, joint in enumerate(segments)]
    if prod(map(len, ways)) > most:
        raise TooManyError
    return map(list, product(*ways))


def _ways(joint: Joint, choice: Choice) -> list[Choice]:
    return [replace(choice, recompute=recompute, keep=keep) for recompute, keep in _sets(joint)]


@cache
def _sets(joint: Joint) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """(what is recomputed, what is kept besides) for every set of values that forward can hand to backward; first that
    which keeps all."""
    standard = [joint.names[node] for node in read_by_backward(joint)]
    anyway = in_memory_anyway(joint)
    names = [name for name in dict.fromkeys(joint.names.values()) if name not in anyway]
    if len(names) > MOST_VALUES:
        raise TooManyError
    found: dict[tuple[str, ...], None] = {}
    for size in reversed(range(len(names) + 1)):
        for kept in combinations(names, size):
            recompute = [name for name in standard if name not in kept and name not in anyway]
            found[cut_at(joint, recompute, kept, run=False).saved] = None
    return [
        (tuple(name for name in standard if name not in saved), tuple(name for name in saved if name not in standard))
        for saved in found
    ]
