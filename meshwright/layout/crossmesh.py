"""Handing a value from one mesh to another: which rank sends which slice to whom.

Both meshes lay the value out as they like; where the pieces of the one and of the other overlap, a slice has to move.
Of several source ranks that hold a slice, the one with least to send so far sends it. Where several target ranks want
the same piece there are three ways (`KINDS`):

*direct*: each is sent its own copy. *gather*: each is sent a part, and they exchange parts among themselves.
*broadcast*: one is sent the piece and passes it on. The last two send every byte between the meshes once, and cost a
second phase inside the target mesh. `route` takes the cheapest by the links' figures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from meshwright.cluster import Mesh
from meshwright.errors import LayoutError
from meshwright.layout.states import Layout

Box = tuple[tuple[int, int], ...]
"""[begin, end) in each dim of the whole tensor."""

Pair = Callable[[int, int], tuple[float, float]]
"""(source rank, target rank) -> latency in seconds, bytes per second."""

KINDS = ("direct", "gather", "broadcast")


@dataclass(frozen=True, slots=True)
class Side:
    """A mesh and the layout in which it has, or wants, the value. P is no layout to hand over in: reduce it before."""

    mesh: Mesh
    layout: Layout

    def boxes(self, shape: Sequence[int]) -> dict[int, Box]:
        """What each rank holds."""
        self.layout.check(shape, self.mesh.sizes)
        if any(state.kind == "P" for state in self.layout):
            raise LayoutError(f"layout {self.layout} between meshes", "no partial sums", "reduce before handing over")
        found = {}
        for position, rank in enumerate(self.mesh.ranks):
            box = [(0, length) for length in shape]
            for state, size, at in zip(self.layout, self.mesh.sizes, self.mesh.coordinates(position), strict=True):
                if state.dim is not None:
                    box[state.dim] = _chunk(box[state.dim], size, at)
            found[rank] = tuple(box)
        return found


@dataclass(frozen=True, slots=True)
class Move:
    """A slice of the tensor, from a rank that has it to one that wants it; the same rank copies."""

    source: int
    target: int
    box: Box

    @property
    def elements(self) -> int:
        return volume(self.box)


@dataclass(frozen=True, slots=True)
class Route:
    """Phases one after the other, the moves of each at once. sources, targets: what ranks hold before and after."""

    kind: str
    phases: tuple[tuple[Move, ...], ...]
    sources: dict[int, Box]
    targets: dict[int, Box]

    def seconds(self, itemsize: int, pair: Pair) -> float:
        """Each phase lasts as long as the rank with most to send, or to receive."""
        return sum(_phase_s(phase, itemsize, pair) for phase in self.phases)


def route(shape: Sequence[int], source: Side, target: Side, itemsize: int, pair: Pair) -> Route:
    """The cheapest of KINDS; of equals the simplest."""
    found = [make_route(kind, shape, source, target) for kind in KINDS]
    return min(found, key=lambda one: one.seconds(itemsize, pair))


def make_route(kind: str, shape: Sequence[int], source: Side, target: Side) -> Route:
    if kind not in KINDS:
        raise LayoutError(f"route {kind!r}", f"one of {', '.join(KINDS)}")
    sources, targets = source.boxes(shape), target.boxes(shape)
    alike: dict[Box, list[int]] = {}
    for rank, box in targets.items():
        alike.setdefault(box, []).append(rank)
    wanted: list[tuple[int, Box]] = []
    passed: list[Move] = []
    for box, ranks in alike.items():
        if kind == "direct" or len(ranks) == 1:
            wanted += [(rank, box) for rank in ranks]
        elif kind == "broadcast":
            wanted.append((ranks[0], box))
            passed += [Move(ranks[0], rank, box) for rank in ranks[1:]]
        else:
            parts = [part for part in zip(ranks, _split(box, len(ranks)), strict=True) if volume(part[1])]
            wanted += parts
            passed += [Move(rank, other, part) for rank, part in parts for other in ranks if other != rank]
    phases = [tuple(_fetch(sources, wanted))]
    if passed:
        phases.append(tuple(passed))
    return Route(kind, tuple(phases), sources, targets)


def _fetch(sources: dict[int, Box], wanted: list[tuple[int, Box]]) -> list[Move]:
    """Who sends what is wanted: a rank that has it already keeps it, else the holder with least to send so far."""
    holders: dict[Box, list[int]] = {}
    for rank, box in sources.items():
        holders.setdefault(box, []).append(rank)
    sent = dict.fromkeys(sources, 0)
    found = []
    for target, box in wanted:
        for held, ranks in holders.items():
            shared = overlap(held, box)
            if volume(shared):
                sender = target if target in ranks else min(ranks, key=lambda rank: sent[rank])
                sent[sender] += volume(shared) if sender != target else 0
                found.append(Move(sender, target, shared))
    return found


def _phase_s(phase: tuple[Move, ...], itemsize: int, pair: Pair) -> float:
    spent: dict[tuple[str, int], float] = {}
    for move in phase:
        if move.source != move.target:
            latency_s, rate = pair(move.source, move.target)
            seconds = latency_s + itemsize * move.elements / rate
            for end in (("from", move.source), ("to", move.target)):
                spent[end] = spent.get(end, 0.0) + seconds
    return max(spent.values(), default=0.0)


def overlap(one: Box, other: Box) -> Box:
    pairs = zip(one, other, strict=True)
    return tuple((max(a, c), max(max(a, c), min(b, d))) for (a, b), (c, d) in pairs)


def volume(box: Box) -> int:
    return prod(end - begin for begin, end in box)


def _chunk(span: tuple[int, int], pieces: int, index: int) -> tuple[int, int]:
    """As `torch.chunk` cuts: pieces of ceil(n / k), the last one smaller or empty."""
    begin, end = span
    width = -(-(end - begin) // pieces)
    return min(end, begin + index * width), min(end, begin + (index + 1) * width)


def _split(box: Box, parts: int) -> list[Box]:
    """Along the first dim that has equal parts, which lie in one piece in memory then, else the longest; a box without
    dims, or shorter than the parts, leaves some of them empty."""
    if not box:
        return [box] + [((0, 0),)] * (parts - 1)
    lengths = [end - begin for begin, end in box]
    dim = next((i for i, n in enumerate(lengths) if n and n % parts == 0), lengths.index(max(lengths)))
    return [(*box[:dim], _chunk(box[dim], parts, part), *box[dim + 1 :]) for part in range(parts)]
