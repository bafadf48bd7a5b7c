"""Shardings of a Program on one mesh: the best of each distinct segment, for every boundary and any price per byte."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np

from meshwright.capture.program import Program, Segment
from meshwright.cluster import Mesh
from meshwright.errors import PlanError
from meshwright.layout import Layout
from meshwright.pins.pins import Pins
from meshwright.plan import FrontierPoint, ParameterPlan
from meshwright.planner.sharding.eliminated import Solved, solve_segment
from meshwright.planner.sharding.segment import Answer, SegmentProblem, Tied
from meshwright.planner.space.image_boundaries import image_cut_choices
from meshwright.planner.space.long_lived import long_lived_values, shared_layers
from meshwright.planner.space.segment import Space, skip_layout, space
from meshwright.price.parameter import Setting, chain_uses
from meshwright.price.segment import price_segment
from meshwright.profile.lookup import lookup_segments

T = TypeVar("T")

Options = tuple[int, ...]
"""The option of each input, output and tied weight of a segment."""


@dataclass(frozen=True, slots=True)
class Point:
    """A FrontierPoint with the plans of the segment's parameters, by local name."""

    point: FrontierPoint
    parameters: dict[str, ParameterPlan]


class _Least(NamedTuple):
    """Lower bounds on the costs of a segment, over all choices.

    kept_bytes: saved for backward.
    host_s: kernel launches of its ops.
    static_bytes: of each weight, with gradient and optimizer states.
    updates_s: kernel launches of each weight's update.
    """

    kept_bytes: float
    host_s: float
    static_bytes: list[int]
    updates_s: list[float]


@dataclass(slots=True)
class ShardingModel:
    """Shardings of a Program, at the batch of one micro-batch, on one mesh.

    recompute: saved tensors may be recomputed.
    skips: used where many values are alive at once (a U-Net). For each mesh axis, whether values that cross several
        boundaries are sharded over samples; None leaves each of them free. Weights of a layer that runs several times
        (ALBERT) are then stored as if it ran once, between such values.
    cap_bytes: the largest transient of an op.
    overlap_weight: r, the weight of communication that overlaps compute. A step takes U + max(M, C), with M the compute
        and exposed communication, C the overlapping communication, U the updates. For any r >= 0 that is at least

            (M + r C + (1 + r) U) / (1 + r)

        so the minimum of the numerator over `scale` is a lower bound. None adds all up, which bounds nothing.
    flight: micro-batches whose saved tensors are held at a time, each byte of them at the price.
    image_cuts: how images may cross boundaries, once known (`image_boundaries`).
    uses: the segments that read each parameter.
    last_reader: of each boundary value and tied weight.
    steps: the axes that `walk` uses.
    costs, chains: of the cheapest chain at each price asked for, by `key`.
    """

    program: Program
    mesh: Mesh
    pins: Pins
    setting: Setting
    recompute: bool = False
    skips: tuple[bool, ...] | None = None
    cap_bytes: int | None = None
    overlap_weight: float | None = None
    flight: float = 1.0
    image_cuts: list[int] = field(default_factory=list)
    uses: dict[str, list[int]] = field(default_factory=dict)
    last_reader: dict[str, int] = field(default_factory=dict)
    _spaces: dict[int, Space] = field(default_factory=dict)
    _tied: dict[str, tuple[ParameterPlan, ...]] = field(default_factory=dict)
    _problems: dict[object, SegmentProblem] = field(default_factory=dict)
    _solved: dict[object, Solved] = field(default_factory=dict)
    _points: dict[object, Point] = field(default_factory=dict)
    _prices: dict[object, Point] = field(default_factory=dict)
    _leasts: dict[int, _Least] = field(default_factory=dict)
    _transients: list[int] = field(default_factory=list)
    _hosts: list[float] = field(default_factory=list)
    _boundaries: dict[int, tuple[str, ...]] = field(default_factory=dict)
    _numbered: dict[int, SegmentProblem] = field(default_factory=dict)
    steps: list[Any] = field(default_factory=list)
    costs: dict[object, float] = field(default_factory=dict)
    chains: dict[object, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.uses:
            return  # a copy with another weight or cap
        for index, segment in enumerate(self.program.segments):
            for name in segment.params:
                self.uses.setdefault(name, []).append(index)
            self.last_reader.update((name, index) for name in segment.inputs)
        self.last_reader.update((name, users[-1]) for name, users in self.uses.items() if len(users) > 1)

    @property
    def bounds(self) -> bool:
        """Whether a chain's cost over `scale` is a lower bound on its step."""
        return self.overlap_weight is not None or not self.mesh.any_overlap

    @property
    def scale(self) -> float:
        return 1.0 + self.overlap_weight if self.overlap_weight and self.mesh.any_overlap else 1.0

    def key(self, price: float) -> object:
        """The cache key of the cheapest chain at a price, among copies of this ShardingModel."""
        charged = (self.recompute, self.flight, price) if price else ()
        return (self.overlap_weight, self.cap_bytes, *charged)

    def capped(self, cap_bytes: int) -> ShardingModel:
        """A copy with a cap on the transient of an op."""
        return replace(self, cap_bytes=cap_bytes, _solved={}, _points={})

    def weighed(self, overlap_weight: float) -> ShardingModel:
        """A copy with another overlap weight; caches that do not depend on it are shared."""
        if overlap_weight == self.overlap_weight:
            return self
        return replace(self, overlap_weight=overlap_weight, _solved={}, _points={})

    def in_flight(self, count: float) -> ShardingModel:
        """A copy in which so many micro-batches hold their saved tensors at a time."""
        return self if count == self.flight else replace(self, flight=count, _solved={}, _points={})

    def skipping(self, skips: tuple[bool, ...] | None) -> ShardingModel:
        """A copy with these layouts of values that cross several boundaries."""
        own: dict[str, Any] = {"image_cuts": [], "steps": [], "costs": {}, "chains": {}, "_tied": {}}
        return replace(self, skips=skips, **own, _solved={}, _points={}, _numbered={})

    def recomputing(self, recompute: bool = True) -> ShardingModel:
        """A copy in which saved tensors may be recomputed, or may not."""
        return self if self.recompute is recompute else replace(self, recompute=recompute, _solved={}, _points={})

    def forget(self) -> None:
        """Frees the tables of all prices, which are large."""
        self._solved.clear()
        self._points.clear()

    def boundary(self, index: int) -> tuple[str, ...]:
        """The full names of a segment's inputs, outputs and tied weights."""
        if index not in self._boundaries:
            segment = self.program.segments[index]
            tied = (name for name in segment.params if len(self.uses[name]) > 1)
            self._boundaries[index] = (*segment.inputs, *segment.outputs, *tied)
        return self._boundaries[index]

    def space(self, segment: Segment) -> Space:
        if segment.graph not in self._spaces:
            graph = self.program.graph(segment)
            made = space(graph, segment.params, self.program.batch, self.mesh, self.pins, self.setting)
            self._spaces[segment.graph] = made
        return self._spaces[segment.graph]

    def least_held(self) -> float:
        """Lower bound on the held bytes of a chain: each op and weight at its minimum, independently."""
        return self.least_static() + self.least_kept()

    def least_kept(self) -> float:
        """Its part for saved tensors."""
        return sum(self._least(segment).kept_bytes for segment in self.program.segments)

    def least_static(self) -> int:
        """Its part for weights with their gradients and optimizer states."""
        return sum(self._each_weight(lambda least: least.static_bytes))

    def least_weights(self, segment: Segment) -> list[int]:
        """Its part for each weight that a segment reads."""
        return self._least(segment).static_bytes

    def least_transient(self) -> int:
        """Lower bound on the largest transient of a chain, in bytes."""
        if not self._transients:
            firsts = map(self._first, range(len(self.program.graphs)))
            self._transients.append(max(self.space(segment).least_transient() for segment in firsts))
        return self._transients[0]

    def least_host_s(self) -> float:
        """Lower bound on the host's kernel launches in a step, in seconds; zero on a CPU."""
        if not self._hosts:
            asked_s = sum(self._least(segment).host_s for segment in self.program.segments)
            updates_s = sum(self._each_weight(lambda least: least.updates_s))
            self._hosts.append(self.setting.microbatches * asked_s + updates_s)
        return self._hosts[0]

    def _each_weight(self, figures: Callable[[_Least], list[T]]) -> Iterable[T]:
        """A figure of each weight; tied ones count once."""
        found: dict[str, T] = {}
        for segment in self.program.segments:
            for name, figure in zip(segment.params, figures(self._least(segment)), strict=True):
                found.setdefault(name, figure)
        return found.values()

    def _first(self, graph: int) -> Segment:
        return next(segment for segment in self.program.segments if segment.graph == graph)

    def _least(self, segment: Segment) -> _Least:
        if segment.graph not in self._leasts:
            here = self.space(segment)
            kept = sum(float(part.bytes.min()) for parts in here.op_kept for part in parts)
            weights = [here.least_weight(value) for value in here.graph.params]
            held, updates_s = [one[0] for one in weights], [one[1] for one in weights]
            self._leasts[segment.graph] = _Least(kept, sum(here.op_host_s), held, updates_s)
        return self._leasts[segment.graph]

    def solve(self, index: int, price_per_byte: float) -> Solved:
        problem = self.problem(index)
        key = (id(problem), price_per_byte)
        if key not in self._solved:
            graph = self.program.segments[index].graph
            self._solved[key] = solve_segment(
                problem, price_per_byte, graph, self.recompute, self.cap_bytes, self.overlap_weight, self.flight
            )
        return self._solved[key]

    def point(self, index: int, options: Options, price_per_byte: float) -> Point:
        """The segment's best sharding between these boundary options at this price, priced from scratch."""
        found = self.solve(index, price_per_byte)
        key = (id(found), options)
        if key not in self._points:
            answer = found.answer(options)
            # Other weights and prices mostly come to the same answers.
            same = (id(found.segment), repr(answer.choice), repr(answer.parameters))
            if same not in self._prices:
                self._prices[same] = self.priced(index, answer)
            self._points[key] = self._prices[same]
        return self._points[key]

    def priced(self, index: int, answer: Answer) -> Point:
        """The cost of a segment's answer, priced from scratch."""
        graph, charged = self.problem(index).space.graph, self._charged(index)
        made, setting = answer.strategies, self.setting
        point = price_segment(graph, answer.choice, answer.parameters, self.mesh, setting, charged, made)
        return Point(point, answer.parameters)

    def _charged(self, index: int) -> dict[str, float]:
        """The parameters that this segment pays for, by local name, and the number of their uses; the first reader pays
        for a tied one."""
        segment = self.program.segments[index]
        pairs = zip(self.program.graphs[segment.graph].params, segment.params, strict=True)
        return {value.name: self._uses(self.uses[name]) for value, name in pairs if self.uses[name][0] == index}

    def _uses(self, users: Sequence[int]) -> float:
        return chain_uses(users, len(self.program.segments), self.setting.microbatches, lookup_segments(self.program))

    def problem(self, index: int) -> SegmentProblem:
        """The Problem of one segment; equal segments share it."""
        if not self.image_cuts:
            self.image_cuts.append(self._most_image_cuts())
        if index not in self._numbered:
            self._numbered[index] = self._problem(index, self.image_cuts[0])
        return self._numbered[index]

    @property
    def options(self) -> int:
        """Nodes of all segments' Problems, each counted once for every segment it stands for."""
        return sum(len(self.problem(index).problem.costs) for index in range(len(self.program.segments)))

    def _most_image_cuts(self) -> int:
        """The largest set of image layouts for which every segment's tables fit in memory; else the smallest."""
        *larger, least = image_cut_choices(self.program, self.mesh)
        every = range(len(self.program.segments))
        return next((one for one in larger if all(self._problem(i, one).prepared for i in every)), least)

    def _problem(self, index: int, image_cuts: int) -> SegmentProblem:
        segment = self.program.segments[index]
        graph = self.program.graphs[segment.graph]
        tied = {}
        for value, name in zip(graph.params, segment.params, strict=True):
            users = self.uses[name]
            if len(users) > 1:
                tied[value.name] = Tied(self._tied_options(name), self._uses(users) if users[0] == index else 0)
        fixed = self._fixed_layouts(segment) if self.skips is not None else {}
        uses = self._uses((index,))
        key = (segment.graph, tuple(tied.items()), tuple(fixed.items()), uses, image_cuts)
        if key not in self._problems:
            self._problems[key] = SegmentProblem(self.space(segment), tied, fixed, uses, image_cuts)
        return self._problems[key]

    def _fixed_layouts(self, segment: Segment) -> dict[str, Layout]:
        """The layout of each boundary value that crosses more than one boundary, by local name."""
        here, far = self.space(segment), long_lived_values(self.program)
        graph = here.graph
        locals_ = (*(value.name for value in graph.inputs), *graph.outputs)
        pairs = zip(locals_, (*segment.inputs, *segment.outputs), strict=True)
        assert self.skips is not None
        return {local: skip_layout(here, local, self.skips) for local, name in pairs if name in far}

    def _tied_options(self, name: str) -> tuple[ParameterPlan, ...]:
        """The union of its readers' options; a reader may convert inside its segment."""
        if self.skips is not None and not self._tied:
            self._tied.update((one, (plan,)) for one, plan in self._of_shared_layers(self.skips))
        if name not in self._tied:
            found: dict[ParameterPlan, None] = {}
            for index in self.uses[name]:
                segment = self.program.segments[index]
                local = self.program.graphs[segment.graph].params[segment.params.index(name)].name
                found.update(dict.fromkeys(self.space(segment).parameters[local]))
            self._tied[name] = tuple(found)
        return self._tied[name]

    def _of_shared_layers(self, skips: tuple[bool, ...]) -> Iterable[tuple[str, ParameterPlan]]:
        """The plan of each weight of a layer that runs several times: that of the layer alone, between boundary values
        laid out by `skips`."""
        left = shared_layers(self.program)
        for segment in self.program.segments:
            if left.isdisjoint(segment.params):
                continue
            here = self.space(segment)
            boundary = (*(value.name for value in here.graph.inputs), *here.graph.outputs)
            fixed = {name: skip_layout(here, name, skips) for name in boundary}
            alone = solve_segment(SegmentProblem(here, fixed=fixed), 0.0, segment.graph)
            if not np.isfinite(alone.costs).any():
                raise PlanError(f"no way is left to run layer {segment.name}", "pins that agree", "drop one of them")
            found = alone.answer((0,) * alone.costs.ndim).parameters
            pairs = zip(here.graph.params, segment.params, strict=True)
            yield from ((name, found[value.name]) for value, name in pairs if name in left)
            left.difference_update(segment.params)
