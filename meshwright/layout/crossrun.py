"""A Route executed on a process group: slices as point-to-point messages, all of a phase at once.

`begin` posts what can be posted and returns; `Handover.wait` is called where the value is used. In between the slices
travel. A second phase, among the target's ranks, runs when it is waited for.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from meshwright.errors import LayoutError
from meshwright.layout.crossmesh import Box, Move, Route
from meshwright.layout.record import note

TAGS = 1 << 20
"""Messages of one channel that may be under way between two ranks at once, far more than any plan has."""


@dataclass(slots=True)
class Channel:
    """A one-way stream of messages: both ends count theirs alike, so that each has its tag.

    number: what tells its tags from those of other channels over the same group. group: NCCL knows no tags, so there
    each channel has a group of its own; its messages arrive in the order in which they are sent. down: of messages to
    lower ranks, where they have a group of their own: gloo asks for a message over the connection on which a group's
    others go the opposite way, behind all that is under way there.
    """

    number: int = 0
    group: dist.ProcessGroup | None = None
    down: dist.ProcessGroup | None = None
    sent: Counter[int] = field(default_factory=Counter)
    received: Counter[int] = field(default_factory=Counter)

    def send(self, tensor: Tensor, rank: int) -> dist.P2POp:
        self.sent[rank] += 1
        return dist.P2POp(dist.isend, tensor, rank, self._way(rank < dist.get_rank()), self._tag(self.sent[rank]))

    def receive(self, tensor: Tensor, rank: int) -> dist.P2POp:
        self.received[rank] += 1
        return dist.P2POp(dist.irecv, tensor, rank, self._way(dist.get_rank() < rank), self._tag(self.received[rank]))

    def _way(self, down: bool) -> dist.ProcessGroup | None:
        return self.down if down and self.down is not None else self.group

    def _tag(self, count: int) -> int:
        return self.number * TAGS + count % TAGS


Held = tuple[Tensor | None, Box | None]


class Handover:
    """One value on its way, as this rank sees it."""

    def __init__(
        self, route: Route, local: Tensor | None, dtype: torch.dtype, device: torch.device, channel: Channel
    ) -> None:
        self.rank = dist.get_rank()
        box = route.sources.get(self.rank)
        # A rank that only takes needs no piece; one that gives must have its own.
        if local is not None and (box is None or tuple(local.shape) != _shape(box)):
            raise LayoutError(
                f"rank {self.rank} hands over {tuple(local.shape)}", f"its piece, of shape {_shape(box or ())}"
            )
        if local is None and any(move.source == self.rank for move in route.phases[0]):
            raise LayoutError(f"rank {self.rank} hands over None", f"its piece, of shape {_shape(box or ())}")
        self.route, self.channel, self.dtype, self.device = route, channel, dtype, device
        self.wanted = route.targets.get(self.rank)
        self.result: Tensor | None = None
        self.works: list[dist.Work] = []
        self.arriving: list[tuple[Move, Tensor]] = []
        self.kept: list[Tensor] = []
        self._post(route.phases[0], (local, box))

    @property
    def bytes(self) -> int:
        """What it holds here until it is over."""
        buffers = [*self.kept, *(buffer for _, buffer in self.arriving)]
        return sum(tensor.nbytes for tensor in buffers) + (0 if self.result is None else self.result.nbytes)

    def done(self) -> bool:
        """Whether all that this rank sends in the first phase has left."""
        return all(work.is_completed() for work in self.works)

    def wait(self) -> Tensor | None:
        """What this rank wants of the value; None where it wants nothing."""
        self._finish()
        for phase in self.route.phases[1:]:
            self._post(phase, (self.result, self.wanted))  # what a second phase sends lies in the result
            self._finish()
        result, self.result = self.result, None
        if result is None and self.wanted is not None:
            return torch.empty(_shape(self.wanted), dtype=self.dtype, device=self.device)
        return result

    def _post(self, phase: tuple[Move, ...], held: Held) -> None:
        operations: list[dist.P2POp] = []
        for move in phase:
            if move.source == move.target == self.rank:
                piece = _view(held, move.box)
                if self.result is None and move.box == self.wanted and len(self.route.phases) == 1:
                    self.result = piece  # all of it: nothing needs to be copied
                else:
                    self._place(move, piece)
            elif move.source == self.rank:
                self.kept.append(_view(held, move.box).contiguous())
                note("send", f"rank {move.target}", self.kept[-1])
                operations.append(self.channel.send(self.kept[-1], move.target))
            elif move.target == self.rank:
                buffer = torch.empty(_shape(move.box), dtype=self.dtype, device=self.device)
                self.arriving.append((move, buffer))
                note("receive", f"rank {move.source}", buffer)
                operations.append(self.channel.receive(buffer, move.source))
        self.works = []
        for group in dict.fromkeys(one.group for one in operations):
            self.works += dist.batch_isend_irecv([one for one in operations if one.group is group])

    def _finish(self) -> None:
        for work in self.works:
            work.wait()
        for move, buffer in self.arriving:
            self._place(move, buffer)
        self.works, self.arriving, self.kept = [], [], []

    def _place(self, move: Move, piece: Tensor) -> None:
        """A piece that is all this rank wants is the result; others are copied into it."""
        if self.result is None and move.box == self.wanted and move.source != self.rank:
            self.result = piece
            return
        if self.result is None:
            assert self.wanted is not None
            self.result = torch.empty(_shape(self.wanted), dtype=self.dtype, device=self.device)
        _view((self.result, self.wanted), move.box).copy_(piece)


def begin(route: Route, local: Tensor | None, dtype: torch.dtype, device: torch.device, channel: Channel) -> Handover:
    """Every rank of both meshes calls this, those of the source with what they hold; messages of one channel in the
    same order on all. Ranks are those of the default process group."""
    return Handover(route, local, dtype, device, channel)


def hand_over(route: Route, local: Tensor | None, dtype: torch.dtype, device: torch.device) -> Tensor | None:
    """All at once: every rank of both meshes gets what it wants; None for none."""
    rank = dist.get_rank()
    if rank in route.sources and local is None:
        raise LayoutError(f"rank {rank} hands over None", f"its piece, of shape {_shape(route.sources[rank])}")
    return begin(route, local, dtype, device, Channel()).wait()


def _shape(box: Box) -> tuple[int, ...]:
    return tuple(end - begin for begin, end in box)


def _view(held: Held, box: Box) -> Tensor:
    """The slice of a rank's piece that lies at `box` of the whole tensor."""
    tensor, own = held
    assert tensor is not None
    assert own is not None
    return tensor[tuple(slice(a - begin, b - begin) for (a, b), (begin, _) in zip(box, own, strict=True))]
