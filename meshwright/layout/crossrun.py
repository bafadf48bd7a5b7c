"""A Route executed on a process group: slices as point-to-point messages, all of a phase at once.

A `Handover` posts what can be posted where it is made; its `wait` is called where the value is used. In between the
slices travel. A second phase, among the target's ranks, sets out when the first has come, if the channel has couriers;
else when it is waited for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from meshwright.errors import LayoutError
from meshwright.layout.courier import BackgroundWaiter, Task
from meshwright.layout.crossmesh import Box, Move, Route
from meshwright.layout.record import note_bytes

TAGS = 1 << 20
"""Messages of one channel that may be under way between two ranks at once, far more than any plan has."""


@dataclass(frozen=True, slots=True)
class Way:
    """Where a message goes, or comes from."""

    rank: int
    group: dist.ProcessGroup | None
    tag: int


@dataclass(slots=True)
class Channel:
    """A one-way stream of messages: both ends count theirs alike, so that each has its tag.

    number: what tells its tags from those of other channels over the same group. group: NCCL knows no tags, so there
    each channel has a group of its own; its messages arrive in the order in which they are sent. down: of messages to
    lower ranks, where they have a group of their own: gloo asks for a message over the connection on which a group's
    others go the opposite way, behind all that is under way there. threaded: threads wait for what has to be passed on,
    so that second phases set out while the rank computes; only over gloo. (For what is only sent, one costs more than
    letting it go early saves, a tenth of a step of small micro-batches: it is held until the step is over.)
    """

    number: int = 0
    group: dist.ProcessGroup | None = None
    down: dist.ProcessGroup | None = None
    threaded: bool = False
    sent: Counter[int] = field(default_factory=Counter)
    received: Counter[int] = field(default_factory=Counter)
    couriers: dict[tuple[int, ...], BackgroundWaiter] = field(default_factory=dict)

    def to(self, rank: int) -> Way:
        """Of the next message to a rank."""
        self.sent[rank] += 1
        return Way(rank, self._group(rank < dist.get_rank()), self._tag(self.sent[rank]))

    def of(self, rank: int) -> Way:
        """Of the next message that a rank sends here."""
        self.received[rank] += 1
        return Way(rank, self._group(dist.get_rank() < rank), self._tag(self.received[rank]))

    def courier(self, ends: tuple[int, ...]) -> BackgroundWaiter:
        """The one for all that goes between these ranks: it comes in order there, so none waits for a later one."""
        if ends not in self.couriers:
            self.couriers[ends] = BackgroundWaiter()
        return self.couriers[ends]

    def _group(self, down: bool) -> dist.ProcessGroup | None:
        return self.down if down and self.down is not None else self.group

    def _tag(self, count: int) -> int:
        return self.number * TAGS + count % TAGS


Held = tuple[Tensor, Box]
Parcel = tuple[Callable[..., dist.Work | None], Tensor, Way]
"""`dist.isend` or `dist.irecv`, what it sends or fills, and where."""


@dataclass(slots=True)
class Phase:
    """A rank's messages of one phase. kept: what they send. apart: of those that come to a buffer of their own, the
    place where they belong and the buffer."""

    works: list[dist.Work] = field(default_factory=list)
    kept: list[Tensor] = field(default_factory=list)
    apart: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def send(self, piece: Tensor, way: Way) -> Parcel:
        self.kept.append(piece.contiguous())
        return dist.isend, self.kept[-1], way

    def receive(self, place: Tensor, way: Way) -> Parcel:
        if place.is_contiguous():
            return dist.irecv, place, way
        self.apart.append((place, torch.empty_like(place, memory_format=torch.contiguous_format)))
        return dist.irecv, self.apart[-1][1], way

    def post(self, parcels: list[Parcel]) -> None:
        for group in dict.fromkeys(way.group for _, _, way in parcels):
            self.works += dist.batch_isend_irecv(
                [
                    dist.P2POp(kind, tensor, way.rank, group, way.tag)
                    for kind, tensor, way in parcels
                    if way.group is group
                ]
            )

    def finish(self) -> None:
        for work in self.works:
            work.wait()
        for place, buffer in self.apart:
            place.copy_(buffer)
        self.works, self.kept, self.apart = [], [], []

    @property
    def bytes(self) -> int:
        return sum(tensor.nbytes for tensor in (*self.kept, *(buffer for _, buffer in self.apart)))


class Handover:
    """One value on its way, as this rank sees it.

    Every rank of both meshes makes one, those of the source of what they hold (`local`); of the messages of one channel
    in the same order on all. Ranks are those of the default process group.
    """

    def __init__(
        self, route: Route, local: Tensor | None, dtype: torch.dtype, device: torch.device, channel: Channel
    ) -> None:
        self.rank, self.channel = dist.get_rank(), channel
        self.wanted = route.targets.get(self.rank)
        self.first, self.second = Phase(), Phase()
        held = self._held(route, local)
        self.result = None if self.wanted is None else self._room(route, held, dtype, device)
        self._copy(route.phases[0], held)
        moves = [self._ways(phase, dtype.itemsize) for phase in (*route.phases, ())[:2]]
        self.first.post(self._parcels(self.first, moves[0], held))
        self.later = moves[1]
        self.task = Task(self._go_on)
        if channel.threaded:
            # Over gloo a message may be asked for long before it is sent, and then comes at once.
            asked = [(move, way) for move, way in self.later if move.target == self.rank]
            self.second.post(self._parcels(self.second, asked, None))
            self.later = [(move, way) for move, way in self.later if move.source == self.rank]
            if self.later:
                channel.courier((*route.sources, *route.targets)).take(self.task)

    def _held(self, route: Route, local: Tensor | None) -> Held | None:
        """What this rank gives. One that only takes needs no piece; one that gives must have its own."""
        box = route.sources.get(self.rank)
        if local is not None and (box is None or tuple(local.shape) != _shape(box)):
            raise LayoutError(
                f"rank {self.rank} hands over {tuple(local.shape)}", f"its piece, of shape {_shape(box or ())}"
            )
        if local is None and any(move.source == self.rank for move in route.phases[0]):
            raise LayoutError(f"rank {self.rank} hands over None", f"its piece, of shape {_shape(box or ())}")
        return None if local is None or box is None else (local, box)

    def _room(self, route: Route, held: Held | None, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Where this rank's piece of the value will be; if it has all of it already, where it is."""
        assert self.wanted is not None
        own = [move.box for move in route.phases[0] if move.source == move.target == self.rank]
        if held is not None and len(route.phases) == 1 and self.wanted in own:
            return _view(held, self.wanted)
        return torch.empty(_shape(self.wanted), dtype=dtype, device=device)

    def _copy(self, phase: tuple[Move, ...], held: Held | None) -> None:
        for move in phase:
            if move.source == move.target == self.rank and held is not None:
                place, piece = self._place(move.box), _view(held, move.box)
                if place.data_ptr() != piece.data_ptr():
                    place.copy_(piece)

    def _place(self, box: Box) -> Tensor:
        assert self.result is not None
        assert self.wanted is not None
        return _view((self.result, self.wanted), box)

    def _ways(self, phase: tuple[Move, ...], itemsize: int) -> list[tuple[Move, Way]]:
        """This rank's messages of a phase; counted here, so that both ends count alike whenever they are posted."""
        found = []
        for move in phase:
            if move.source == self.rank != move.target:
                found.append((move, self.channel.to(move.target)))
                note_bytes("send", f"rank {move.target}", itemsize * move.elements)
            elif move.target == self.rank != move.source:
                found.append((move, self.channel.of(move.source)))
                note_bytes("receive", f"rank {move.source}", itemsize * move.elements)
        return found

    def _parcels(self, phase: Phase, moves: list[tuple[Move, Way]], held: Held | None) -> list[Parcel]:
        """held: what is sent lies there, or in the result."""
        found = []
        for move, way in moves:
            if move.source == self.rank:
                found.append(phase.send(self._place(move.box) if held is None else _view(held, move.box), way))
            else:
                found.append(phase.receive(self._place(move.box), way))
        return found

    def _go_on(self) -> None:
        """Once the first phase is over, what is left of the second."""
        self.first.finish()
        self.second.post(self._parcels(self.second, self.later, None))

    @property
    def bytes(self) -> int:
        """What it holds here until it is over."""
        return self.first.bytes + self.second.bytes + (0 if self.result is None else self.result.nbytes)

    def done(self) -> bool:
        """Whether all that this rank sends in the first phase has left."""
        if self.task.done():
            self.task.wait()  # for its error
            return True
        return all(work.is_completed() for work in self.first.works)

    def wait(self) -> Tensor | None:
        """What this rank wants of the value; None where it wants nothing."""
        self.task.wait()
        self.second.finish()
        result, self.result = self.result, None
        return result


def _shape(box: Box) -> tuple[int, ...]:
    return tuple(end - begin for begin, end in box)


def _view(held: Held, box: Box) -> Tensor:
    """The slice of a rank's piece that lies at `box` of the whole tensor."""
    tensor, own = held
    return tensor[tuple(slice(a - begin, b - begin) for (a, b), (begin, _) in zip(box, own, strict=True))]
